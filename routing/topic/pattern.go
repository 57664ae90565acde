package topic

import (
	"errors"
	"fmt"
	"strings"
)

// Wildcards of a pattern.
const (
	oneWord  = "*"
	anyWords = "#"
)

// maxAnyWords is the number of # that RabbitMQ takes in one pattern from 4.3.5 on.
const maxAnyWords = 2

// checkPattern refuses what some broker refuses, and what can only be a mistake since it means something else than it
// looks like: "order*" matches the one word that is written so.
func checkPattern(pattern string) error {
	var faults []error
	many := 0
	for i, word := range strings.Split(pattern, ".") {
		switch {
		case word == "":
			faults = append(faults, fmt.Errorf("word %d is empty", i+1))
		case word == anyWords:
			many++
		case word != oneWord && strings.ContainsAny(word, oneWord+anyWords):
			faults = append(faults, fmt.Errorf("word %d, %q: * and # stand for whole words only", i+1, word))
		}
	}
	if many > maxAnyWords {
		faults = append(faults, fmt.Errorf("%d times #, at most %d", many, maxAnyWords))
	}
	return errors.Join(faults...)
}

// Match reports whether a topic exchange leads a message with the routing key to a queue bound with pattern, exactly as
// the broker decides it, for patterns, too, that a Subscription refuses: words are separated by dots and may be empty,
// case matters, * is exactly one word, # is any number of words, none included, and a * or # within a word is a plain
// character. The empty key has no words at all: # matches it, and the empty pattern; * does not. The time it takes grows
// with the product of the two lengths at most, and it allocates nothing.
func Match(pattern, key string) bool {
	p, k := wordsOf(pattern), wordsOf(key)
	var (
		afterAny words // of the pattern, behind the last #
		rest     words // of the key, what that # has not taken
		any      bool  // there was a #
	)
	for {
		word, next, more := p.next()
		switch {
		case more && word == anyWords:
			// Only the last # has to be taken back: what an earlier one might take in addition, this one can take.
			any, afterAny, rest = true, next, k
			p = next
			continue
		case more && k.more():
			if w, behind, _ := k.next(); word == oneWord || word == w {
				p, k = next, behind
				continue
			}
		case !more && !k.more():
			return true
		}
		if !any || !rest.more() {
			return false
		}
		_, rest, _ = rest.next() // the # takes one word more
		p, k = afterAny, rest
	}
}

// words are the words of a key or pattern that were not yet looked at.
type words struct {
	s    string
	done bool
}

// wordsOf splits as the broker does: the empty string has no words, while "." has two.
func wordsOf(s string) words { return words{s, s == ""} }

func (w words) more() bool { return !w.done }

// next returns the first word, and what is behind it.
func (w words) next() (word string, behind words, ok bool) {
	if w.done {
		return "", w, false
	}
	word, rest, more := strings.Cut(w.s, ".")
	return word, words{rest, !more}, true
}

// compare orders patterns from the most specific to the least: from the left, word by word, a plain word comes before *,
// that before the end, and that before #. Patterns that differ in plain words only are in the order of these.
func compare(a, b string) int {
	p, q := wordsOf(a), wordsOf(b)
	for {
		v, pNext, pMore := p.next()
		w, qNext, qMore := q.next()
		if d := rank(v, pMore) - rank(w, qMore); d != 0 {
			return d
		}
		if !pMore {
			return strings.Compare(a, b)
		}
		p, q = pNext, qNext
	}
}

func rank(word string, more bool) int {
	switch {
	case !more:
		return 2 // no more words: fewer keys than "any further words", more than "one that is so"
	case word == oneWord:
		return 1
	case word == anyWords:
		return 3
	}
	return 0
}
