//go:build ignore

// Draws the pictures of this folder anew: go run generate.go, in this folder.
package main

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"log"
	"math"
	"os"
	"path/filepath"
)

func main() {
	pictures := []struct {
		name string
		data []byte
	}{
		{"pictures/dusk.jpg", asJPEG(1200, 750, dusk)},
		{"pictures/dunes.jpg", asJPEG(600, 600, dunes)},
		{"pictures/moon.jpg", asJPEG(640, 480, moon)},
		{"pictures/grey.jpg", asGreyJPEG(640, 360)},
		{"pictures/rings.png", asPNG(1040, 780, 4, rings)},
		{"pictures/checker.png", asPNG(440, 440, 2, checker)},
		{"pictures/stripes.png", asPNG(800, 200, 8, stripes)},
		{"pictures/stamp.png", asPNG(120, 90, 4, rings)},
		{"broken/torn.jpg", torn(asJPEG(1200, 750, dusk))},
		{"broken/enormous.png", enormous(60_000, 60_000)},
	}
	for _, p := range pictures {
		if err := os.MkdirAll(filepath.Dir(p.name), 0o755); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(p.name, p.data, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// A painter gives the colour at a point; x and y go from 0 to 1.
type painter func(x, y float64) color.RGBA

func dusk(_, y float64) color.RGBA {
	return color.RGBA{uint8(40 + 200*y), uint8(30 + 110*y*y), uint8(120 - 70*y), 255}
}

func dunes(x, y float64) color.RGBA {
	v := 0.5 + 0.5*math.Sin(6*x+3*math.Sin(4*y))
	return color.RGBA{uint8(150 + 90*v), uint8(110 + 80*v), uint8(60 + 50*v), 255}
}

func moon(x, y float64) color.RGBA {
	d := math.Hypot((x-0.6)*4/3, y-0.4)
	v := 1 / (1 + math.Exp((d-0.2)*60))
	return color.RGBA{uint8(15 + 215*v), uint8(20 + 205*v), uint8(45 + 155*v), 255}
}

func rings(x, y float64) color.RGBA {
	v := 0.5 + 0.5*math.Cos(40*math.Hypot(x-0.5, y-0.5))
	a := uint8(255 * min(1, 2.2-3*math.Hypot(x-0.5, y-0.5))) // fades out, so the picture has transparency
	return color.RGBA{uint8(float64(a) * v), uint8(float64(a) * (1 - v)), a / 2, a}
}

func checker(x, y float64) color.RGBA {
	if (int(x*11)+int(y*11))%2 == 0 {
		return color.RGBA{20, 60, 90, 255}
	}
	return color.RGBA{240, 235, 220, 255}
}

func stripes(x, y float64) color.RGBA {
	n := uint8(int(10*x+4*y) % 8)
	return color.RGBA{n * 30, 200 - n*20, 90 + n*12, 255}
}

func asJPEG(w, h int, paint painter) []byte {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.SetRGBA(x, y, paint(float64(x)/float64(w), float64(y)/float64(h)))
		}
	}
	var buf bytes.Buffer
	check(jpeg.Encode(&buf, img, &jpeg.Options{Quality: 20}))
	return buf.Bytes()
}

func asGreyJPEG(w, h int) []byte {
	img := image.NewGray(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.SetGray(x, y, color.Gray{uint8(x * 255 / w)})
		}
	}
	var buf bytes.Buffer
	check(jpeg.Encode(&buf, img, &jpeg.Options{Quality: 20}))
	return buf.Bytes()
}

// asPNG paints with few colours, so that the file stays small.
func asPNG(w, h, levels int, paint painter) []byte {
	img := image.NewPaletted(image.Rect(0, 0, w, h), nil)
	index := map[color.NRGBA]uint8{}
	for y := range h {
		for x := range w {
			c := color.NRGBAModel.Convert(paint(float64(x)/float64(w), float64(y)/float64(h))).(color.NRGBA)
			c = color.NRGBA{coarse(c.R, levels), coarse(c.G, levels), coarse(c.B, 2), coarse(c.A, 4)}
			i, known := index[c]
			if !known {
				i = uint8(len(img.Palette))
				index[c] = i
				img.Palette = append(img.Palette, c)
			}
			img.SetColorIndex(x, y, i)
		}
	}
	if len(img.Palette) > 256 {
		log.Fatalf("%d colours", len(img.Palette))
	}
	var buf bytes.Buffer
	check((&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&buf, img))
	return buf.Bytes()
}

func coarse(v uint8, levels int) uint8 {
	step := 255 / (levels - 1)
	return uint8((int(v) + step/2) / step * step)
}

// torn is a picture whose second half is missing.
func torn(data []byte) []byte { return data[:len(data)/2] }

// enormous is a PNG of a few bytes whose header claims w x h pixels of 8 bytes each.
func enormous(w, h uint32) []byte {
	header := binary.BigEndian.AppendUint32(nil, w)
	header = binary.BigEndian.AppendUint32(header, h)
	header = append(header, 16, 6, 0, 0, 0) // 16 bits a channel, red green blue alpha
	out := []byte("\x89PNG\r\n\x1a\n")
	out = append(out, chunk("IHDR", header)...)
	out = append(out, chunk("IDAT", []byte{0x78, 0x9c, 0x03, 0x00, 0x00, 0x00, 0x00, 0x01})...)
	return append(out, chunk("IEND", nil)...)
}

func chunk(kind string, data []byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
	out = append(append(out, kind...), data...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[4:]))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
