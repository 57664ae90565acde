package provide

import (
	"context"
	"fmt"
	"time"
)

// bootTime bounds how long a server may take to serve once started. A loaded machine needs a tenth of it.
const bootTime = 90 * time.Second

// stopTime bounds an orderly stop: RabbitMQ 3.10 takes 7 s when it has the management API.
const stopTime = 15 * time.Second

// host is what a server runs on: processes of this machine, or a container.
type host interface {
	// running reports whether the server has been started and has not ended.
	running() bool
	// output returns the end of what the server wrote.
	output() string
	// remove ends the server at once and deletes its data.
	remove() error
}

// machine is a host of a server that can be broken and mended.
type machine interface {
	host
	// start boots the server with the data it has; it does not wait until it serves.
	start(ctx context.Context) error
	// stop ends the server as an operator would; the data stays.
	stop(ctx context.Context) error
	// kill ends it at once, as a power failure would; the data stays.
	kill() error
	// freeze stops all its processes where they are; sockets stay open. thaw lets them go on.
	freeze() error
	thaw() error
}

// wrap says what an error is about.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
