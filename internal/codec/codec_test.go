package codec_test

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warrenmq/warren/internal/codec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type image struct {
	ID   int
	Tags []string
	Next *image
}

// ok requires that body decodes to want.
func ok[T any](want T, body string) func(*testing.T) {
	return func(t *testing.T) {
		got, err := codec.JSON[T]([]byte(body))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// bad requires that body is refused as permanent, with a text that holds part.
func bad[T any](part, body string) func(*testing.T) {
	return func(t *testing.T) {
		got, err := codec.JSON[T]([]byte(body))
		require.ErrorContains(t, err, part)
		require.True(t, isPermanent(err))
		var u interface{ Undecodable() bool }
		require.True(t, errors.As(err, &u) && u.Undecodable())
		var zero T
		require.Equal(t, zero, got, "nothing half decoded")
	}
}

func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

func TestJSON(t *testing.T) {
	for name, check := range map[string]func(*testing.T){
		"struct":             ok(image{ID: 42, Tags: []string{"a"}}, `{"ID":42,"Tags":["a"]}`),
		"space around it":    ok(image{ID: 42}, " \t\r\n{\"ID\":42}\n "),
		"unknown field":      ok(image{ID: 42}, `{"ID":42,"Colour":"red"}`),
		"missing field":      ok(image{}, `{}`),
		"null field":         ok(image{ID: 1}, `{"ID":1,"Tags":null,"Next":null}`),
		"number":             ok(7, `7`),
		"string":             ok("null", `"null"`),
		"empty string":       ok("", `""`),
		"bool":               ok(true, `true`),
		"slice":              ok([]int{1, 2}, `[1,2]`),
		"array":              ok([2]int{1, 2}, `[1,2]`),
		"raw":                ok(json.RawMessage(`{"a": 1}`), `{"a": 1}`),
		"time":               ok(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), `"2026-01-02T03:04:05Z"`),
		"null for a pointer": ok[*image](nil, `null`),
		"null for a map":     ok[map[string]int](nil, ` null `),
		"null for a slice":   ok[[]int](nil, `null`),
		"null for any":       ok[any](nil, `null`),
		"null for raw":       ok(json.RawMessage(`null`), `null`),

		"nil body":                bad[image]("empty body", ""),
		"only space":              bad[image]("empty body", " \n\t\r"),
		"empty for any":           bad[any]("empty body", ""),
		"empty for a pointer":     bad[*image]("empty body", ""),
		"null for a struct":       bad[image]("null where a value is needed", "null"),
		"null with space":         bad[image]("null where a value is needed", "\nnull "),
		"null for a number":       bad[int]("null where a value is needed", "null"),
		"null for a string":       bad[string]("null where a value is needed", "null"),
		"null for an array":       bad[[2]int]("null where a value is needed", "null"),
		"null for a time":         bad[time.Time]("null where a value is needed", "null"),
		"trailing value":          bad[image]("after top-level value", `{"ID":1}{"ID":2}`),
		"trailing garbage":        bad[image]("after top-level value", `{"ID":1} x`),
		"trailing NUL":            bad[image]("after top-level value", "{\"ID\":1}\x00"),
		"trailing no-break space": bad[image]("after top-level value", "{\"ID\":1}\u00a0"),
		"byte order mark":         bad[image]("invalid character", "\ufeff{}"),
		"cut off":                 bad[image]("unexpected end", `{"ID":1`),
		"two nulls":               bad[*image]("after top-level value", "null null"),
		"other type":              bad[image]("cannot unmarshal", `{"ID":"x"}`),
		"half decoded":            bad[image]("cannot unmarshal", `{"ID":1,"Tags":7}`),
		"too large a number":      bad[int8]("cannot unmarshal", `300`),
		"not JSON":                bad[image]("invalid character", "<xml/>"),
		"names the type":          bad[image]("decode JSON as codec_test.image", "x"),
		"too deep":                bad[any]("exceeded max depth", strings.Repeat("[", 1_000_000)),
	} {
		t.Run(name, check)
	}
}

func TestPermanent(t *testing.T) {
	require.NoError(t, codec.Permanent(nil))
	err := codec.Permanent(io.ErrUnexpectedEOF)
	require.True(t, isPermanent(err))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.EqualError(t, err, io.ErrUnexpectedEOF.Error())
	require.False(t, isPermanent(io.EOF))
}

func TestJSONErrorsKeepTheirChain(t *testing.T) {
	_, err := codec.JSON[image]([]byte(`{"ID":"x"}`))
	var wrong *json.UnmarshalTypeError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "ID", wrong.Field)
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{"", "null", " null", `{"ID":1}`, `{"ID":1}x`, "[]", "1", "\x00", `{"Next":{"Next":null}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := codec.JSON[image](body)
		if err != nil {
			require.True(t, isPermanent(err))
			require.Zero(t, v)
			return
		}
		var want image
		require.NoError(t, json.Unmarshal(body, &want))
		require.Equal(t, want, v)
	})
}
