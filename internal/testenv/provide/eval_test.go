package provide

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// evaluatorThat answers one request with the given frame.
func evaluatorThat(t *testing.T, answer []byte) (e evaluator, request <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	requests, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		var size [4]byte
		_, _ = io.ReadFull(conn, size[:])
		body := make([]byte, binary.BigEndian.Uint32(size[:]))
		_, _ = io.ReadFull(conn, body)
		requests <- string(body)
		if answer == nil { // keep it waiting
			_, _ = io.ReadAll(conn)
			return
		}
		_, _ = conn.Write(answer)
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return evaluator{address: l.Addr().String(), token: "token"}, requests
}

func frame(s string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
}

func TestEval(t *testing.T) {
	for _, tt := range []struct {
		name    string
		answer  []byte
		want    int
		wantErr string
	}{
		{name: "a value", answer: frame("+42"), want: 42},
		{name: "a failure", answer: frame("-error:badmatch"), wantErr: "badmatch"},
		{name: "another type", answer: frame(`+"text"`), wantErr: "cannot unmarshal"},
		{name: "nothing", answer: frame(""), wantErr: "answer of 0 bytes"},
		{name: "too much", answer: []byte{0xff, 0xff, 0xff, 0xff}, wantErr: "bytes"},
		{name: "cut off", answer: []byte{0, 0, 0, 9, '+'}, wantErr: "unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, request := evaluatorThat(t, tt.answer)
			var got int
			err := e.eval(t.Context(), "1 + 41.", &got)
			require.Equal(t, "token1 + 41.", <-request)
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestEvalEndsWithItsContext(t *testing.T) {
	e, _ := evaluatorThat(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, e.eval(ctx, "1.", nil), context.DeadlineExceeded)
}

func TestBinary(t *testing.T) {
	require.Equal(t, "<<>>", Binary(""))
	require.Equal(t, "<<97,34,195,164,0>>", Binary("a\"ä\x00"))
}
