package main

import (
	"context"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMakeThumbnails(t *testing.T) {
	for _, tt := range []struct {
		file string
		want map[string]image.Point
	}{
		{"testdata/pictures/dusk.jpg", map[string]image.Point{
			"007-dusk-64.jpeg": {64, 40}, "007-dusk-256.jpeg": {256, 160}, "007-dusk-1024.jpeg": {1024, 640}}},
		{"testdata/pictures/grey.jpg", map[string]image.Point{
			"007-grey-64.jpeg": {64, 36}, "007-grey-256.jpeg": {256, 144}, "007-grey-1024.jpeg": {640, 360}}},
		{"testdata/pictures/rings.png", map[string]image.Point{
			"007-rings-64.png": {64, 48}, "007-rings-256.png": {256, 192}, "007-rings-1024.png": {1024, 768}}},
		{"testdata/pictures/stamp.png", map[string]image.Point{ // never larger than it was
			"007-stamp-64.png": {64, 48}, "007-stamp-256.png": {120, 90}, "007-stamp-1024.png": {120, 90}}},
	} {
		t.Run(filepath.Base(tt.file), func(t *testing.T) {
			out := t.TempDir()
			require.NoError(t, makeThumbnails(t.Context(), 7, tt.file, out))
			require.Equal(t, tt.want, sizes(t, out))
		})
	}
}

func TestMakeThumbnailsAgain(t *testing.T) {
	out := t.TempDir()
	require.NoError(t, makeThumbnails(t.Context(), 7, "testdata/pictures/stamp.png", out))
	before := sizes(t, out)
	require.NoError(t, makeThumbnails(t.Context(), 7, "testdata/pictures/stamp.png", out))
	require.Equal(t, before, sizes(t, out))
}

// sizes decodes all files of a folder.
func sizes(t *testing.T, folder string) map[string]image.Point {
	t.Helper()
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	out := map[string]image.Point{}
	for _, file := range files {
		img, _, err := load(filepath.Join(folder, file.Name()))
		require.NoError(t, err, file.Name())
		out[file.Name()] = img.Bounds().Max
	}
	return out
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, data, 0o600))
		return path
	}
	for _, tt := range []struct{ name, path, want string }{
		{"half a picture", "testdata/broken/torn.jpg", "corrupt picture: "},
		{"an enormous one", "testdata/broken/enormous.png", "refused before decoding: claims 60000 x 60000 pixels"},
		{"something else", file("text.png", []byte("\x1b[31mnot a picture")), "not a picture: image: unknown format"},
		{"nothing", file("empty.jpg", nil), "not a picture: image: unknown format"},
		{"a large file", file("large.jpg", make([]byte, maxFileBytes+1)), "the file is larger than"},
		{"a folder", dir, "is a directory"},
		{"no file", filepath.Join(dir, "none.png"), "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := t.TempDir()
			require.ErrorContains(t, makeThumbnails(t.Context(), 1, tt.path, out), tt.want)
			require.Empty(t, sizes(t, out))
		})
	}
}

// The header's claim would take 28 GB.
func TestEnormousPictureCostsNothing(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := load("testdata/broken/enormous.png")
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "refused before decoding")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

func TestLargestPictureIsTaken(t *testing.T) {
	img := image.NewPaletted(image.Rect(0, 0, 6000, maxPixels/6000), color.Palette{color.Black})
	path := filepath.Join(t.TempDir(), "black.png")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, png.Encode(f, img))
	require.NoError(t, f.Close())
	got, _, err := load(path)
	require.NoError(t, err)
	require.Equal(t, img.Rect, got.Bounds())
}

func TestSaveLeavesNoPieces(t *testing.T) {
	dir := t.TempDir()
	require.Error(t, save(filepath.Join(dir, "none.png"), "png", image.NewRGBA(image.Rectangle{})), "PNG has no empty pictures")
	require.Empty(t, sizes(t, dir))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, makeThumbnails(ctx, 1, "testdata/pictures/dusk.jpg", dir), context.Canceled)
	require.Empty(t, sizes(t, dir))
}
