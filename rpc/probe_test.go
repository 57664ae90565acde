package rpc_test

import (
	"testing"
	"time"
	"fmt"
	"encoding/base64"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/warrenmq/warren/internal/testenv"
)

func TestProbe(t *testing.T) {
	b := testenv.Shared(t)
	s := newSetup(t)
	raw := s.rawClient()
	var conn *amqp.Connection
	for _, to := range forgedAddresses(t, raw) {
		if conn == nil || conn.IsClosed() { 
		conn, _ = amqp.Dial(b.URL())
		}
		ch, _ := conn.Channel()
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		ch.Confirm(false)
		began := time.Now()
		dc, err := ch.PublishWithDeferredConfirm("", "amq.rabbitmq.reply-to."+to, false, false, amqp.Publishing{})
		_=err
		var how any = "?"
		select {
		case e := <-closed: how = e
		case <-dc.Done(): how = dc.Acked()
		case <-time.After(3*time.Second): how = "nothing"
		}
		if how != true {
		x, _ := base64.StdEncoding.DecodeString(strings.Split(to,".")[0])
		fmt.Printf("%q: %q %v %v\n", to, x, how, time.Since(began))
		}
		if !conn.IsClosed() {ch.Close()}
	}
}
