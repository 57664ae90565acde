package codec

// Permanent marks err as one that trying again cannot cure: the chain has a method Permanent() bool that returns true.
// Text and chain stay what they are; nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

type permanent struct{ error }

func (permanent) Permanent() bool { return true }
func (p permanent) Unwrap() error { return p.error }

// undecodable is the permanent error of a body: whoever keeps the message may say so by it.
type undecodable struct{ permanent }

func (undecodable) Undecodable() bool { return true }
