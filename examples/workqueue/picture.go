package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// What one picture may take. A decoded pixel is 1 to 16 bytes, depending on the format; as many pictures are in memory as
// there are workers.
const (
	maxFileBytes = 32 << 20
	maxPixels    = 24_000_000
)

var widths = []int{64, 256, 1024}

// makeThumbnails writes the picture at path into the folder out in each of the widths. The files' names begin with the
// id, since two folders may both have a cat.jpg.
func makeThumbnails(ctx context.Context, id int, path, out string) error {
	img, format, err := load(path)
	if err != nil {
		return err
	}
	thumbnails, err := shrink(ctx, img, widths...)
	if err != nil {
		return err
	}
	base := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	for i, thumbnail := range thumbnails {
		name := fmt.Sprintf("%03d-%s-%d.%s", id, base, widths[i], format)
		if err := save(filepath.Join(out, name), format, thumbnail); err != nil {
			return err
		}
	}
	return nil
}

// load decodes a picture, after a look at the size it claims: the few bytes of a header can ask for gigabytes. Header and
// picture are taken from the same bytes, whatever happens to the file meanwhile.
func load(path string) (image.Image, string, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, "", err
	}
	header, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, "", fmt.Errorf("not a picture: %w", err)
	}
	if int64(header.Width)*int64(header.Height) > maxPixels {
		return nil, "", fmt.Errorf("refused before decoding: claims %d x %d pixels, at most %d are allowed",
			header.Width, header.Height, maxPixels)
	}
	img, format, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, "", fmt.Errorf("corrupt picture: %w", err)
	}
	if img.Bounds().Empty() {
		return nil, "", fmt.Errorf("empty picture: %d x %d pixels", header.Width, header.Height)
	}
	return img, format, nil
}

// readFile is os.ReadFile up to maxFileBytes.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("the file is larger than %d bytes", maxFileBytes)
	}
	return data, nil
}

// save writes a picture under another name first: whoever looks, or comes again after a crash, finds whole files only.
func save(path, format string, img image.Image) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".thumbnail-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if format == "png" {
		err = png.Encode(f, img)
	} else {
		err = jpeg.Encode(f, img, &jpeg.Options{Quality: 85})
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}
