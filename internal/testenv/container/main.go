// Command container runs RabbitMQ and PostgreSQL in containers for the tests of the module around it. It is a module
// of its own, so that nobody who uses warren has testcontainers-go and a Docker client among the names in their module
// graph; package provide builds it and starts it as a child process.
//
// It reads requests from standard input, one JSON object a line, and answers each with a line on standard output, in
// the order in which they are done. When standard input ends, because the parent closed it or died, it removes all
// containers and networks it made and exits. What it left behind when it was killed itself, the next one removes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// request is an order. Op is run, start, stop, kill, pause, unpause, signal, state or remove, and all but run name a container;
// or it is network or remove-network.
type request struct {
	ID        int    `json:"id"`
	Op        string `json:"op"`
	Container string `json:"container,omitempty"`
	Network   string `json:"network,omitempty"` // remove-network
	Spec      spec   `json:"spec,omitzero"`     // run
	Seconds   int    `json:"seconds,omitempty"`
	PID       int    `json:"pid,omitempty"`    // signal: as processes in the container know it
	Signal    string `json:"signal,omitempty"` // signal: its name, such as STOP
}

// response answers the request with the same ID. One with ID 0 says why there will be none.
type response struct {
	ID        int    `json:"id"`
	Error     string `json:"error,omitempty"`
	Container string `json:"container,omitempty"` // run
	Network   string `json:"network,omitempty"`   // network
	Running   bool   `json:"running,omitempty"`   // state
	Log       string `json:"log,omitempty"`       // state: the end of what it wrote
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "container helper:", err)
		os.Exit(1)
	}
}

func run() error {
	// An interrupt from the terminal goes to the parent too, which still needs its containers while it ends. Its end
	// closes standard input.
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	engine, err := newEngine(ctx)
	if err != nil {
		return errors.Join(err, json.NewEncoder(os.Stdout).Encode(response{Error: err.Error()}))
	}
	serve(ctx, engine)
	return engine.close()
}

// serve handles requests, each in a goroutine of its own, until there are no more or ctx ends.
func serve(ctx context.Context, engine *engine) {
	ctx, cancel := context.WithCancel(ctx)
	requests := make(chan request)
	go read(ctx, requests)
	var out sync.Mutex
	encoder := json.NewEncoder(os.Stdout)
	var handling sync.WaitGroup
	defer handling.Wait()
	defer cancel() // what still runs is for nobody any more
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				return
			}
			handling.Go(func() {
				answer := engine.handle(ctx, r)
				out.Lock()
				defer out.Unlock()
				_ = encoder.Encode(answer) // a parent that is gone wants no answer
			})
		case <-ctx.Done():
			return
		}
	}
}

// read decodes standard input until it ends or makes no sense. It is left behind in a blocked read when ctx ends first;
// the process ends then.
func read(ctx context.Context, requests chan<- request) {
	defer close(requests)
	decoder := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var r request
		if decoder.Decode(&r) != nil {
			return
		}
		select {
		case requests <- r:
		case <-ctx.Done():
			return
		}
	}
}
