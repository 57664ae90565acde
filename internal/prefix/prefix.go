// Package prefix keeps the texts of wrapped errors short: each says once who speaks, and of what.
package prefix

import "strings"

// Wrap is fmt.Errorf("%s: %w", what, err) without what the text of err, which comes from reconnect, would say again: that it
// comes from there, and each of said, in this order. The chain is that of err; nil stays nil.
func Wrap(what string, err error, said ...string) error {
	if err == nil {
		return nil
	}
	return &wrapped{what, err, said}
}

type wrapped struct {
	what string
	error
	said []string
}

// Error makes the text when it is asked for. Of joined errors every line begins anew.
func (w *wrapped) Error() string {
	lines := strings.Split(w.error.Error(), "\n")
	for i, line := range lines {
		line = strings.TrimPrefix(line, "reconnect: ")
		for _, s := range w.said {
			line = strings.TrimPrefix(line, s)
		}
		lines[i] = line
	}
	return w.what + ": " + strings.Join(lines, "\n")
}

func (w *wrapped) Unwrap() error { return w.error }
