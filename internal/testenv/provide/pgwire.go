package provide

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"
)

// What is done to a database here is CREATE and DROP DATABASE. A driver for that would be a dependency of every example,
// so the few messages it takes are written out: https://www.postgresql.org/docs/current/protocol.html

// pgConn is a connection to PostgreSQL, without TLS, for one statement at a time.
type pgConn struct {
	conn net.Conn
	in   *bufio.Reader
}

// execPostgres runs one statement that has no result worth having on a connection of its own.
func execPostgres(ctx context.Context, rawURL, statement string) error {
	u, err := url.Parse(rawURL)
	if err != nil {
		return errors.New("the database's URL cannot be parsed") // the error would show the password
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "5432")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c := &pgConn{conn: conn, in: bufio.NewReader(conn)}
	if err := c.login(u); err != nil {
		return errors.Join(err, ctx.Err())
	}
	if err := c.send('Q', cString(statement)); err != nil {
		return errors.Join(err, ctx.Err())
	}
	if err := c.untilReady(); err != nil {
		return errors.Join(err, ctx.Err())
	}
	return c.send('X', nil)
}

// login starts the session and authenticates: trust, clear text or SCRAM-SHA-256.
func (c *pgConn) login(u *url.URL) error {
	name := u.User.Username()
	database := strings.TrimPrefix(u.Path, "/")
	if database == "" {
		database = name
	}
	startup := binary.BigEndian.AppendUint32(nil, 196608) // protocol 3.0
	for _, s := range []string{"user", name, "database", database} {
		startup = append(startup, cString(s)...)
	}
	if err := c.send(0, append(startup, 0)); err != nil {
		return err
	}
	password, _ := u.User.Password()
	var scram *scramClient
	for {
		body, err := c.expect('R')
		if err != nil {
			return err
		}
		if len(body) < 4 {
			return errors.New("short authentication request")
		}
		switch kind := binary.BigEndian.Uint32(body); kind {
		case 0:
			return c.untilReady()
		case 3:
			err = c.send('p', cString(password))
		case 10:
			scram = newScram(password)
			first := scram.first()
			answer := append(cString("SCRAM-SHA-256"), binary.BigEndian.AppendUint32(nil, uint32(len(first)))...)
			err = c.send('p', append(answer, first...))
		case 11:
			var final []byte
			if final, err = scram.final(body[4:]); err == nil {
				err = c.send('p', final)
			}
		case 12:
			err = scram.verify(body[4:])
		default:
			return fmt.Errorf("authentication method %d is not known here", kind)
		}
		if err != nil {
			return err
		}
	}
}

// untilReady reads until the server waits for the next statement, and returns the error it reported on the way.
func (c *pgConn) untilReady() error {
	var failure error
	for {
		kind, body, err := c.receive()
		if err != nil {
			return errors.Join(failure, err)
		}
		switch kind {
		case 'E':
			failure = pgError(body)
		case 'Z':
			return failure
		}
	}
}

// expect reads a message of one kind; an error the server reports instead is returned as one.
func (c *pgConn) expect(want byte) ([]byte, error) {
	kind, body, err := c.receive()
	switch {
	case err != nil:
		return nil, err
	case kind == 'E':
		return nil, pgError(body)
	case kind != want:
		return nil, fmt.Errorf("message %q instead of %q", kind, want)
	}
	return body, nil
}

func (c *pgConn) receive() (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > 1<<20 {
		return 0, nil, fmt.Errorf("message of %d bytes", size)
	}
	body = make([]byte, size-4)
	_, err = io.ReadFull(c.in, body)
	return head[0], body, err
}

// send writes a message; kind 0 is the first one, which has none.
func (c *pgConn) send(kind byte, body []byte) error {
	var message []byte
	if kind != 0 {
		message = append(message, kind)
	}
	message = binary.BigEndian.AppendUint32(message, uint32(len(body)+4))
	_, err := c.conn.Write(append(message, body...))
	return err
}

// pgError returns what an error message says: fields of a letter and a text.
func pgError(body []byte) error {
	var severity, code, text string
	for field := range bytes.SplitSeq(body, []byte{0}) {
		if len(field) == 0 {
			continue
		}
		switch value := string(field[1:]); field[0] {
		case 'S':
			severity = value
		case 'C':
			code = value
		case 'M':
			text = value
		}
	}
	return fmt.Errorf("%s %s: %s", severity, code, text)
}

func cString(s string) []byte { return append([]byte(s), 0) }

// quoteName quotes an identifier.
func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
