package provide

import "context"

// machine is what a server runs on: processes of this machine, or a container.
type machine interface {
	// start boots the server with the data it has; it does not wait until it serves.
	start(ctx context.Context) error
	// stop ends the server as an operator would; the data stays.
	stop(ctx context.Context) error
	// kill ends it at once, as a power failure would; the data stays.
	kill() error
	// freeze stops all its processes where they are; sockets stay open. thaw lets them go on.
	freeze() error
	thaw() error
	// running reports whether it has been started and has not ended.
	running() bool
	// output returns the end of what the server wrote.
	output() string
	// remove ends the server and deletes its data.
	remove() error
}
