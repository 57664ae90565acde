package main

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// greys is a picture of one row per slice.
func greys(rows ...[]uint8) *image.Gray {
	img := image.NewGray(image.Rect(0, 0, len(rows[0]), len(rows)))
	for y, row := range rows {
		copy(img.Pix[y*img.Stride:], row)
	}
	return img
}

func TestShrinkAveragesAreas(t *testing.T) {
	for _, tt := range []struct {
		name  string
		src   *image.Gray
		width int
		want  [][]uint8
	}{
		{"two into one", greys([]uint8{10, 20}), 1, [][]uint8{{15}}},
		{"rounds to the nearest", greys([]uint8{10, 11}), 1, [][]uint8{{11}}},
		{"four into one", greys([]uint8{0, 100}, []uint8{200, 40}), 1, [][]uint8{{85}}},
		{"parts of a pixel", greys([]uint8{0, 90, 240}), 2, [][]uint8{{30, 190}}},
		{"both ways in part", greys([]uint8{0, 90, 240}, []uint8{0, 90, 240}, []uint8{60, 150, 0}), 2, [][]uint8{{30, 190}, {70, 97}}},
		{"not wider", greys([]uint8{1, 2}, []uint8{3, 4}), 2, [][]uint8{{1, 2}, {3, 4}}},
		{"never larger", greys([]uint8{7, 9}), 1000, [][]uint8{{7, 9}}},
		{"a line stays a line", greys([]uint8{8, 8, 8, 8, 8, 8, 8, 8}), 2, [][]uint8{{8, 8}}},
		{"a column", greys([]uint8{1}, []uint8{2}, []uint8{3}), 5, [][]uint8{{1}, {2}, {3}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := shrink(t.Context(), tt.src, tt.width)
			require.NoError(t, err)
			require.Len(t, out, 1)
			require.Equal(t, image.Rect(0, 0, len(tt.want[0]), len(tt.want)), out[0].Rect)
			for y, row := range tt.want {
				for x, v := range row {
					require.Equal(t, color.RGBA{v, v, v, 255}, out[0].RGBAAt(x, y), "at %d, %d", x, y)
				}
			}
		})
	}
}

// reference is the mean of the area that a target pixel covers, done slowly and in floating point.
func reference(src *image.RGBA, w, h, x, y int, channel func(color.RGBA) uint8) float64 {
	fx, fy := float64(src.Rect.Dx())/float64(w), float64(src.Rect.Dy())/float64(h)
	overlap := func(from, size float64, pixel int) float64 {
		return max(0, min(from+size, float64(pixel+1))-max(from, float64(pixel)))
	}
	var sum float64
	for sy := range src.Rect.Dy() {
		for sx := range src.Rect.Dx() {
			part := overlap(float64(x)*fx, fx, sx) * overlap(float64(y)*fy, fy, sy)
			sum += part * float64(channel(src.RGBAAt(src.Rect.Min.X+sx, src.Rect.Min.Y+sy)))
		}
	}
	return sum / (fx * fy)
}

func TestShrinkAgreesWithTheReference(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		w, h := 1+random.IntN(40), 1+random.IntN(40)
		corner := image.Pt(random.IntN(20)-10, random.IntN(20)-10) // a picture need not begin at 0, 0
		src := image.NewRGBA(image.Rectangle{corner, corner.Add(image.Pt(w, h))})
		for i := range src.Pix {
			src.Pix[i] = uint8(random.UintN(256))
		}
		width := 1 + random.IntN(w)
		t.Run(fmt.Sprintf("%dx%d to %d", w, h, width), func(t *testing.T) {
			out, err := shrink(t.Context(), src, width)
			require.NoError(t, err)
			for y := range out[0].Rect.Dy() {
				for x := range out[0].Rect.Dx() {
					got := out[0].RGBAAt(x, y)
					for _, channel := range []func(color.RGBA) uint8{
						func(c color.RGBA) uint8 { return c.R }, func(c color.RGBA) uint8 { return c.A },
					} {
						want := reference(src, out[0].Rect.Dx(), out[0].Rect.Dy(), x, y, channel)
						require.InDelta(t, want, channel(got), 0.51, "at %d, %d", x, y)
					}
				}
			}
		})
	}
}

func TestShrinkGivesEachWidth(t *testing.T) {
	out, err := shrink(t.Context(), image.NewYCbCr(image.Rect(0, 0, 1500, 1000), image.YCbCrSubsampleRatio420), 64, 256, 1024)
	require.NoError(t, err)
	require.Len(t, out, 3)
	require.Equal(t, image.Pt(64, 43), out[0].Rect.Max)
	require.Equal(t, image.Pt(256, 171), out[1].Rect.Max)
	require.Equal(t, image.Pt(1024, 683), out[2].Rect.Max)
}

func TestShrinkKeepsTransparency(t *testing.T) {
	src := image.NewNRGBA(image.Rect(0, 0, 2, 1))
	src.SetNRGBA(0, 0, color.NRGBA{R: 255, A: 255})
	src.SetNRGBA(1, 0, color.NRGBA{G: 255, A: 0}) // its green is invisible and must not come through
	out, err := shrink(t.Context(), src, 1)
	require.NoError(t, err)
	require.Equal(t, color.RGBA{R: 128, A: 128}, out[0].RGBAAt(0, 0))
}

func TestShrinkEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := shrink(ctx, image.NewGray(image.Rect(0, 0, 10, 10)), 5)
	require.ErrorIs(t, err, context.Canceled)
}
