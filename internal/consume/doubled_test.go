package consume

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// RabbitMQ 3.10 answers a consume, or a cancel, twice when the queue's process ends while it is at it: when somebody deletes
// the queue. The driver's only reader then waits for somebody to take the second answer, and with it every channel of the
// connection, unless the loop asks something else on that channel.
func TestAnsweredTwice(t *testing.T) {
	for name, method := range map[string]uint16{"consume": consumeOk, "cancel": cancelOk} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			d := newDoubler(t, r.broker.URL())
			r.link.url = d.url
			var seen record
			cfg := r.config(seen.handler)
			cfg.Concurrency, cfg.Prefetch, cfg.SlowStart = 2, 8, true
			l := start(t, cfg).waitReady()

			d.next.Store(uint32(method))
			r.publish(0, 40) // the prefetch grows: cancel, consume
			r.eventually(func() bool { return d.next.Load() == 0 }, "an answer was doubled")
			r.publish(40, 40)
			r.empty(0)
			r.eventually(func() bool { return len(consumers(r)) == 2 }, "one consumer per worker")
			require.Greater(t, r.link.channels(), 2, "the channel was given up")
			handled := seen.all()
			slices.Sort(handled)
			require.Len(t, slices.Compact(handled), 80)
			require.NoError(t, l.stop())
		})
	}
}

// Methods of the class basic.
const (
	consumeOk = 21
	cancelOk  = 31
)

// doubler stands between the driver and the broker. It passes on the broker's next frame with the method named in next
// twice.
type doubler struct {
	url  string
	next atomic.Uint32 // 0: none
}

func newDoubler(t *testing.T, rawURL string) *doubler {
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	uri, err := amqp.ParseURI(rawURL)
	require.NoError(t, err)
	upstream := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	u.Host = l.Addr().String()
	d := &doubler{url: u.String()}
	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { d.serve(ctx, client, upstream) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); end(); running.Wait() })
	return d
}

func (d *doubler) serve(ctx context.Context, client net.Conn, upstream string) {
	defer client.Close()
	broker, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = broker.Close() })()
	var up sync.WaitGroup
	defer up.Wait()
	defer broker.Close()
	up.Go(func() { _, _ = io.Copy(broker, client); _ = broker.Close() })
	for {
		frame := make([]byte, 7)
		if _, err := io.ReadFull(broker, frame); err != nil {
			return
		}
		frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame[3:])+1)...)
		if _, err := io.ReadFull(broker, frame[7:]); err != nil {
			return
		}
		if d.doubles(frame) {
			frame = append(frame, frame...)
		}
		if _, err := client.Write(frame); err != nil {
			return
		}
	}
}

func (d *doubler) doubles(frame []byte) bool {
	const methodFrame, basic = 1, 60
	if frame[0] != methodFrame || binary.BigEndian.Uint16(frame[7:]) != basic {
		return false
	}
	method := uint32(binary.BigEndian.Uint16(frame[9:]))
	return d.next.CompareAndSwap(method, 0)
}
