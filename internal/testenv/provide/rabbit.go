package provide

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ is a broker: one that was started here, one a parent process handed down, or one somebody else runs. Its
// methods are safe for concurrent use, except those that start and stop the node.
type RabbitMQ struct {
	// URL is where it is dialled, with an administrator's credentials.
	URL string
	// ManagementURL is the root of its management API, without credentials (those of URL hold); empty where none is known.
	ManagementURL string
	// TLSURL is the same by way of TLS; empty unless it was started by [Provider.TLSNode].
	TLSURL string
	// Version is the server's, such as "3.10.8".
	Version string
	// Kind is who provided it.
	Kind Kind

	eval    evaluator
	tlsDir  string    // where the node has its TLSFiles
	machine machine   // nil unless started by this process
	owner   *Provider // ended with the broker; nil unless the provider is this broker's alone
}

// Eval has the broker evaluate Erlang source, expressions that end with a dot, and decodes the last one's value from
// its JSON form into out. It fails for a broker that was not started by this package, here or in a parent process.
func (r *RabbitMQ) Eval(ctx context.Context, source string, out any) error {
	return r.eval.eval(ctx, source, out)
}

// CanEval reports whether Eval is to be had.
func (r *RabbitMQ) CanEval() bool { return r.eval.address != "" }

// errNotOurs is returned when a node is to be started or stopped that this process did not start.
var errNotOurs = errors.New("this process did not start the broker")

// Start boots the node again after Stop or Kill and waits until it serves, under the URL it had.
func (r *RabbitMQ) Start(ctx context.Context) error {
	if r.machine == nil {
		return errNotOurs
	}
	if err := r.machine.start(ctx); err != nil {
		return err
	}
	return r.wait(ctx)
}

// Stop ends the node in good order: its clients are told.
func (r *RabbitMQ) Stop(ctx context.Context) error {
	if r.machine == nil {
		return errNotOurs
	}
	return r.machine.stop(ctx)
}

// Kill ends the node at once, frozen or not.
func (r *RabbitMQ) Kill() error {
	if r.machine == nil {
		return errNotOurs
	}
	return r.machine.kill()
}

// Freeze stops the node's processes where they are: sockets stay open, the kernel goes on taking bytes for them.
func (r *RabbitMQ) Freeze() error {
	if r.machine == nil {
		return errNotOurs
	}
	return r.machine.freeze()
}

// Thaw ends Freeze.
func (r *RabbitMQ) Thaw() error {
	if r.machine == nil {
		return errNotOurs
	}
	return r.machine.thaw()
}

// Alarm raises or clears the node's memory alarm. It returns once the connections have been told; the node's clients learn
// of it, by connection.blocked, when they publish.
func (r *RabbitMQ) Alarm(ctx context.Context, on bool) error {
	change := "rabbit_alarm:clear_alarm(Alarm)"
	if on {
		change = "rabbit_alarm:set_alarm({Alarm, []})"
	}
	// Raised the way the memory monitor does it, but without its delay of 2.5 s. The monitor itself speaks up only when
	// its own view changes, so it does not clear this one. The question comes after the notice and so waits for it.
	return r.Eval(ctx, fmt.Sprintf(`
Alarm = {resource_limit, memory, node()}, %s,
%v = lists:keymember(Alarm, 1, rabbit_alarm:get_alarms()).`, change, on), nil)
}

// Running reports whether the node's processes are there, frozen or not.
func (r *RabbitMQ) Running() bool { return r.machine != nil && r.machine.running() }

// Remove ends the node and deletes its data. It does nothing for a broker this process did not start.
func (r *RabbitMQ) Remove() error {
	if r.owner != nil {
		owner := r.owner
		r.owner = nil
		return owner.Close() // which removes this broker
	}
	if r.machine == nil {
		return nil
	}
	m := r.machine
	r.machine = nil // removing it again does nothing
	return m.remove()
}

// wait blocks until the node serves, and notes its version.
func (r *RabbitMQ) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	for {
		err := r.probe(ctx)
		if err == nil {
			return nil
		}
		if !r.machine.running() {
			return fmt.Errorf("the broker ended while it booted: %s", r.machine.output())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the broker does not serve: %w: %w: %s", ctx.Err(), err, r.machine.output())
		case <-time.After(25 * time.Millisecond):
		}
	}
}

// probe opens a connection as any client would: a listening port alone says nothing, docker's proxy has one before the
// broker does.
func (r *RabbitMQ) probe(ctx context.Context) error {
	if err := r.Eval(ctx, "true = rabbit:is_running().", nil); err != nil {
		return err
	}
	version, err := serverVersion(r.URL)
	if err != nil {
		return err
	}
	r.Version = version
	return nil
}

// serverVersion dials a broker and returns the version it tells.
func serverVersion(rawURL string) (string, error) {
	conn, err := amqp.DialConfig(rawURL, amqp.Config{
		Dial:       amqp.DefaultDial(5 * time.Second),
		Properties: amqp.Table{"connection_name": "testenv-probe"},
	})
	if err != nil {
		return "", err
	}
	version, _ := conn.Properties["version"].(string)
	return version, conn.Close()
}

// amqpURL returns the URL of a node started here.
func amqpURL(port int) string { return nodeURL("amqp", port) }

// amqpsURL is the one by way of TLS.
func amqpsURL(port int) string { return nodeURL("amqps", port) }

func nodeURL(scheme string, port int) string {
	return (&url.URL{Scheme: scheme, User: url.UserPassword(nodeUser, nodePassword), Host: loopback(port), Path: "/"}).String()
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
