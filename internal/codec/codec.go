// Package codec decodes the JSON bodies of messages strictly, so that a message which is not what its handler expects is
// an error that trying again cannot cure, and never a zero value that looks like data.
package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

var (
	errEmpty = errors.New("empty body")
	errNull  = errors.New("null where a value is needed")
)

// JSON decodes body, which must hold exactly one JSON value, into a T. An empty body, trailing data and, unless T can be
// nil (pointer, map, slice, interface), a bare null are errors, as is what encoding/json refuses. Unknown fields are
// ignored and missing ones left zero, so that publishers and consumers can be upgraded in any order. Every error is
// permanent (see Permanent), and has a method Undecodable() bool that returns true.
func JSON[T any](body []byte) (T, error) {
	var v, zero T
	if err := decode(body, &v); err != nil {
		return zero, undecodable{permanent{fmt.Errorf("decode JSON as %s: %w", reflect.TypeFor[T](), err)}}
	}
	return v, nil
}

func decode[T any](body []byte, v *T) error {
	body = trim(body)
	if len(body) == 0 {
		return errEmpty
	}
	if string(body) == "null" && !takesNull[T]() {
		return errNull
	}
	return json.Unmarshal(body, v) // refuses trailing data, and nesting deeper than 10,000
}

// trim cuts the white space of JSON, and no other, off both ends.
func trim(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && isSpace(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// takesNull tells whether a T can hold null. One that decodes itself need not: by convention it leaves itself as it is.
func takesNull[T any]() bool {
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return false
}
