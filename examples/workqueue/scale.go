package main

import (
	"context"
	"image"
	"image/draw"
)

// shrink scales src to each of the widths, keeping its proportions; a picture that is not wider than that keeps its size.
// It goes through src once, row by row, and so needs no second copy of it. It stops when ctx ends.
func shrink(ctx context.Context, src image.Image, widths ...int) ([]*image.RGBA, error) {
	b := src.Bounds()
	scalers := make([]*scaler, len(widths))
	for i, width := range widths {
		scalers[i] = newScaler(b.Dx(), b.Dy(), width)
	}
	row := image.NewRGBA(image.Rect(0, 0, b.Dx(), 1))
	for y := range b.Dy() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		draw.Draw(row, row.Rect, src, image.Pt(b.Min.X, b.Min.Y+y), draw.Src)
		for _, s := range scalers {
			s.add(row.Pix)
		}
	}
	out := make([]*image.RGBA, len(scalers))
	for i, s := range scalers {
		out[i] = s.out
	}
	return out, nil
}

// scaler averages areas: each pixel it puts out is the mean of what it covers in the source, where pixels that it covers
// in part count in part. Everything is a whole number: a source pixel is dw wide and dh high, a target pixel sw and sh.
type scaler struct {
	sw, sh, dw, dh uint64
	columns        []uint64 // the present source row, summed up for each target pixel and channel
	sums           []uint64 // the present target row, as far as it was seen
	need           uint64   // height that is missing until the target row is complete
	y              int      // of the target row
	out            *image.RGBA
}

const channels = 4

func newScaler(width, height, targetWidth int) *scaler {
	w := min(width, targetWidth)
	h := max(1, (height*w+width/2)/width) // the nearest; a long thin line stays visible
	return &scaler{
		sw: uint64(width), sh: uint64(height), dw: uint64(w), dh: uint64(h),
		columns: make([]uint64, w*channels),
		sums:    make([]uint64, w*channels),
		need:    uint64(height),
		out:     image.NewRGBA(image.Rect(0, 0, w, h)),
	}
}

// add takes the next row of the source.
func (s *scaler) add(row []uint8) {
	s.squeeze(row)
	for left := s.dh; left > 0; {
		part := min(left, s.need)
		for i, sum := range s.columns {
			s.sums[i] += sum * part
		}
		left -= part
		s.need -= part
		if s.need == 0 {
			s.emit()
		}
	}
}

// squeeze sums a row of the source up into columns.
func (s *scaler) squeeze(row []uint8) {
	clear(s.columns)
	target, need := s.columns, s.sw
	for ; len(row) > 0; row = row[channels:] {
		for left := s.dw; left > 0; {
			part := min(left, need)
			for c := range channels {
				target[c] += uint64(row[c]) * part
			}
			left -= part
			need -= part
			if need == 0 {
				target, need = target[channels:], s.sw
			}
		}
	}
}

// emit writes the target row out and begins the next.
func (s *scaler) emit() {
	area := s.sw * s.sh
	pix := s.out.Pix[s.y*s.out.Stride:]
	for i, sum := range s.sums {
		pix[i] = uint8((sum + area/2) / area)
	}
	clear(s.sums)
	s.y++
	s.need = s.sh
}
