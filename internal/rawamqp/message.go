package rawamqp

import "fmt"

// Message is a message as it came.
type Message struct {
	Redelivered   bool
	Exchange, Key string // of this delivery
	Size          uint64 // of the body, in bytes
	HeaderSize    int    // of all properties and headers, in bytes
	ID            string // the MessageId, when it can be found

	tag    uint64
	frames []frame
}

// parse finds what can be found without looking into the headers.
func (m *Message) parse() {
	r := &reader{b: m.frames[0].payload[4:]}
	m.tag, m.Redelivered, m.Exchange, m.Key = r.u64(), r.u8()&1 != 0, r.short(), r.short()
	m.HeaderSize = len(m.frames[1].payload)
	r = &reader{b: m.frames[1].payload}
	r.u32() // class and weight
	m.Size = r.u64()
	m.ID = messageID(r)
}

// messageID skips the properties before it; the table of headers says how long it is.
func messageID(r *reader) string {
	flags := r.u16()
	has := func(bit int) bool { return flags&(1<<bit) != 0 }
	if has(15) { // content type
		r.short()
	}
	if has(14) { // content encoding
		r.short()
	}
	if has(13) { // headers
		r.text(int(r.u32()))
	}
	if has(12) { // delivery mode
		r.u8()
	}
	if has(11) { // priority
		r.u8()
	}
	for _, bit := range []int{10, 9, 8} { // correlation id, reply to, expiration
		if has(bit) {
			r.short()
		}
	}
	if !has(7) {
		return ""
	}
	if id := r.short(); !r.bad {
		return id
	}
	return ""
}

// String says what a message is, in text that holds no control characters.
func (m *Message) String() string {
	id := "without a message id"
	if m.ID != "" {
		id = fmt.Sprintf("%q", m.ID)
	}
	return fmt.Sprintf("message %s (delivered from exchange %q with key %q, %d bytes of properties and headers, %d bytes of body)",
		id, m.Exchange, m.Key, m.HeaderSize, m.Size)
}

// Forget lets go of the content. The message can still be settled.
func (m *Message) Forget() { m.frames = nil }
