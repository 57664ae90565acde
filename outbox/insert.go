package outbox

import (
	"fmt"
	"time"
)

// maxStatement bounds the bodies and the headers of one INSERT, in bytes. PostgreSQL takes 1 GB for an array and for a whole
// message.
const maxStatement = 128 << 20

// insertColumns come from parallel arrays: one statement for any number of rows. unnest gives them back in their order,
// and in that order the ids are drawn. The message ids travel as text, the one form that is an array of uuid to every
// driver and in every mode of pgx.
const (
	insertColumns = "message_id, exchange, routing_key, ordering_key, properties, headers, payload"
	insertValues  = "m, e, k, o, p::jsonb, h::jsonb, b"
	insertArrays  = "$1::text[]::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[]"
)

// statements are the INSERTs of an outbox, one for each lane, and the one for all that is to be sent later.
type statements struct {
	lanes     []string
	scheduled string
}

func newStatements(t tables, lanes int) statements {
	var s statements
	for lane := range lanes {
		s.lanes = append(s.lanes, fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM unnest(%s) AS t (m, e, k, o, p, h, b)",
			t.lane(lane), insertColumns, insertValues, insertArrays))
	}
	s.scheduled = fmt.Sprintf("INSERT INTO %s (%s, lane, available_at) SELECT %s, l, a FROM unnest(%s, $8::int[], $9::timestamptz[])"+
		" AS t (m, e, k, o, p, h, b, l, a)", t.scheduled(), insertColumns, insertValues, insertArrays)
	return s
}

// entry is a message that has been checked, ready for its INSERT.
type entry struct {
	id, exchange, key   string
	orderingKey         *string
	properties, headers *string // JSON
	body                []byte
	lane                int
	notBefore           time.Time // zero: at once
}

// size is how much of a statement the entry takes, as good as.
func (e *entry) size() int {
	n := len(e.body)
	for _, json := range []*string{e.properties, e.headers} {
		if json != nil {
			n += len(*json)
		}
	}
	return n
}

// insert is one INSERT with its arguments.
type insert struct {
	sql  string
	rows int
	args []any
}

// inserts distributes entries over as few statements as there can be, in their order.
func (s *statements) inserts(entries []entry) []insert {
	var all []insert
	for lane, sql := range s.lanes {
		all = append(all, group(sql, entries, func(e *entry) bool { return e.notBefore.IsZero() && e.lane == lane })...)
	}
	return append(all, group(s.scheduled, entries, func(e *entry) bool { return !e.notBefore.IsZero() })...)
}

// group makes an INSERT, or as many as their bodies need, of the entries that belong to it.
func group(sql string, entries []entry, belongs func(*entry) bool) []insert {
	var all []insert
	var c columns
	for i := range entries {
		e := &entries[i]
		if !belongs(e) {
			continue
		}
		if c.size+e.size() > maxStatement && len(c.ids) > 0 {
			all = append(all, c.insert(sql))
			c = columns{}
		}
		c.add(e)
	}
	if len(c.ids) > 0 {
		all = append(all, c.insert(sql))
	}
	return all
}

// columns collects the arguments of an INSERT.
type columns struct {
	ids, exchanges, keys             []string
	orderingKeys, properties, header []*string
	bodies                           [][]byte
	lanes                            []int32
	times                            []time.Time
	size                             int
	scheduled                        bool
}

func (c *columns) add(e *entry) {
	c.ids = append(c.ids, e.id)
	c.exchanges = append(c.exchanges, e.exchange)
	c.keys = append(c.keys, e.key)
	c.orderingKeys = append(c.orderingKeys, e.orderingKey)
	c.properties = append(c.properties, e.properties)
	c.header = append(c.header, e.headers)
	c.bodies = append(c.bodies, e.body)
	c.size += e.size()
	if !e.notBefore.IsZero() {
		c.scheduled = true
		c.lanes = append(c.lanes, int32(e.lane))
		c.times = append(c.times, e.notBefore)
	}
}

func (c *columns) insert(sql string) insert {
	args := []any{c.ids, c.exchanges, c.keys, c.orderingKeys, c.properties, c.header, c.bodies}
	if c.scheduled {
		args = append(args, c.lanes, c.times)
	}
	return insert{sql: sql, rows: len(c.ids), args: args}
}
