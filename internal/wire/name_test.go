package wire

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestName(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults []string
	}{
		{"orders", nil},
		{"AMQ.orders", nil},
		{"amq", nil},
		{"größe.日本 \t", nil},
		{x(255), nil},
		{"", []string{"Name: empty"}},
		{x(256), []string{"Name: 256 bytes, at most 255"}},
		{"amq.orders", []string{`Name: "amq.orders" begins with amq., which is reserved`}},
		{"amq.", []string{`Name: "amq." begins with amq., which is reserved`}},
		{"a\xff", []string{`Name: "a\xff" is not valid UTF-8`}},
		{"a\nb", []string{`Name: "a\nb" holds a line break`}},
		{"a\r", []string{`Name: "a\r" holds a line break`}},
		{"amq.\xff\n" + x(250), []string{
			"Name: 256 bytes, at most 255",
			fmt.Sprintf(`Name: "amq.\xff\n%s"… is not valid UTF-8`, x(54)),
			fmt.Sprintf(`Name: "amq.\xff\n%s"… begins with amq., which is reserved`, x(54)),
			fmt.Sprintf(`Name: "amq.\xff\n%s"… holds a line break`, x(54)),
		}},
	} {
		t.Run(fmt.Sprintf("%.20q", tt.name), func(t *testing.T) { requireFaults(t, Name("Name", tt.name), tt.faults...) })
	}
}

func TestShortString(t *testing.T) {
	requireFaults(t, ShortString("Key", ""))
	requireFaults(t, ShortString("Key", "amq.topic\r\n"))
	requireFaults(t, ShortString("Key", x(255)))
	requireFaults(t, ShortString("Key", x(256)), "Key: 256 bytes, at most 255")
	requireFaults(t, ShortString("Key", "\xff"), `Key: "\xff" is not valid UTF-8`)
}

func TestError(t *testing.T) {
	err := errors.Join(errors.New("another"), fmt.Errorf("publish: %w", ShortString("Key", x(300))))
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, Error{Field: "Key", Problem: "300 bytes, at most 255"}, *e)
	require.True(t, permanent(err))
}
