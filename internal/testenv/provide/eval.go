package provide

import (
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// evalScript is what a node runs at boot to answer Eval.
//
//go:embed eval.erl
var evalScript string

// maxAnswer bounds what is read of an answer; the longest real ones list a few thousand connections.
const maxAnswer = 64 << 20

// evaluator sends Erlang expressions to one node. The zero value evaluates nothing.
type evaluator struct {
	address string // host:port, loopback
	token   string // what makes the node listen to us and to nobody else on this machine
}

// eval has the node evaluate source, expressions that end with a dot, and decodes the last one's value into out (nil:
// drops it). Maps, lists, binaries, atoms, numbers and booleans have a JSON form; a tuple or a pid is an error.
func (e evaluator) eval(ctx context.Context, source string, out any) error {
	if e.address == "" {
		return errors.New("this broker evaluates nothing: it was not started by the test environment")
	}
	answer, err := e.roundTrip(ctx, source)
	if err != nil {
		return fmt.Errorf("evaluate on %s: %w", e.address, err)
	}
	if answer[0] != '+' {
		return fmt.Errorf("evaluate %s: %s", source, answer[1:])
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer[1:], out); err != nil {
		return fmt.Errorf("evaluate %s: answer %s: %w", source, answer[1:], err)
	}
	return nil
}

// roundTrip sends one request on a connection of its own and returns the answer, never empty.
func (e evaluator) roundTrip(ctx context.Context, source string) ([]byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", e.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	request := binary.BigEndian.AppendUint32(nil, uint32(len(e.token)+len(source)))
	if _, err := conn.Write(append(append(request, e.token...), source...)); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	n := binary.BigEndian.Uint32(size[:])
	if n == 0 || n > maxAnswer {
		return nil, fmt.Errorf("answer of %d bytes", n)
	}
	answer := make([]byte, n)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	return answer, nil
}

// Binary returns s as an Erlang binary literal, for the expressions given to [RabbitMQ.Eval].
func Binary(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(s[i])))
	}
	return "<<" + b.String() + ">>"
}
