package wire

import "fmt"

// Error is one fault of a value that was to be sent. Several of them come joined.
type Error struct {
	Field   string // where: `MessageId`, `Headers["a"][3]`
	Problem string // what, with the bound that was missed
}

func (e *Error) Error() string { return e.Field + ": " + e.Problem }

// Permanent reports that sending the same again cannot help.
func (e *Error) Permanent() bool { return true }

func fault(field, format string, args ...any) error {
	return &Error{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// faults collects errors in the order they are found; the zero value is ready.
type faults []error

func (f *faults) add(err error) {
	if err != nil {
		*f = append(*f, err)
	}
}
