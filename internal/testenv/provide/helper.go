package provide

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// helper is the child process that runs containers, the program in the folder container beside this one. It removes
// them when its standard input ends, which it does when this process ends.
type helper struct {
	cmd   *exec.Cmd
	wait  func() error // waits for the end of cmd; only once ended is closed
	stdin io.WriteCloser

	mu      sync.Mutex
	lastID  int
	waiting map[int]chan<- helperResponse
	ended   chan struct{} // closed when no answer comes any more
	last    string        // what it said when it could not go on
}

// helperRequest and helperResponse are the lines of the program's protocol.
type (
	helperRequest struct {
		ID        int            `json:"id"`
		Op        string         `json:"op"`
		Container string         `json:"container,omitempty"`
		Network   string         `json:"network,omitempty"`
		Spec      *containerSpec `json:"spec,omitempty"`
		Seconds   int            `json:"seconds,omitempty"`
		PID       int            `json:"pid,omitempty"`
		Signal    string         `json:"signal,omitempty"`
	}
	containerSpec struct {
		Image string            `json:"image"`
		Env   map[string]string `json:"env,omitempty"`
		Files map[string]string `json:"files,omitempty"`
		Cmd   []string          `json:"cmd,omitempty"`
		Ports map[int]int       `json:"ports"` // port in the container: port on loopback

		Network string `json:"network,omitempty"`
		Host    string `json:"host,omitempty"` // its name in the network
	}
	helperResponse struct {
		ID        int    `json:"id"`
		Error     string `json:"error"`
		Container string `json:"container"`
		Network   string `json:"network"`
		Running   bool   `json:"running"`
		Log       string `json:"log"`
	}
)

// startHelper starts the program, and builds it first where no parent process has done so.
func startHelper() (*helper, error) {
	path, err := helperProgram()
	if err != nil {
		return nil, err
	}
	h := &helper{cmd: exec.Command(path), waiting: make(map[int]chan<- helperResponse), ended: make(chan struct{})}
	h.wait = sync.OnceValue(h.cmd.Wait)
	h.cmd.Stderr = os.Stderr // a panic, nothing else
	stdout, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the container helper: %w", err)
	}
	go h.read(stdout)
	return h, nil
}

// read hands out answers until the program ends.
func (h *helper) read(stdout io.Reader) {
	defer close(h.ended)
	decoder := json.NewDecoder(bufio.NewReader(stdout))
	for {
		var answer helperResponse
		if decoder.Decode(&answer) != nil {
			return
		}
		h.mu.Lock()
		if answer.ID == 0 {
			h.last = answer.Error
		}
		waiting := h.waiting[answer.ID]
		delete(h.waiting, answer.ID)
		h.mu.Unlock()
		if waiting != nil {
			waiting <- answer
		}
	}
}

// do sends a request and waits for its answer.
func (h *helper) do(ctx context.Context, r helperRequest) (helperResponse, error) {
	answer := make(chan helperResponse, 1)
	if err := h.send(&r, answer); err != nil {
		return helperResponse{}, fmt.Errorf("container helper: %w", err)
	}
	select {
	case a := <-answer:
		if a.Error != "" {
			return a, fmt.Errorf("%s a container: %s", r.Op, a.Error)
		}
		return a, nil
	case <-h.ended:
		return helperResponse{}, h.failure()
	case <-ctx.Done():
		return helperResponse{}, fmt.Errorf("%s a container: %w", r.Op, ctx.Err())
	}
}

// send writes a request under the next ID.
func (h *helper) send(r *helperRequest, answer chan<- helperResponse) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastID++
	r.ID = h.lastID
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	h.waiting[r.ID] = answer
	// One that has ended says more by its last answer than this error does.
	if _, err := h.stdin.Write(append(line, '\n')); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// failure says why the program ended by itself.
func (h *helper) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.New("the container helper ended: " + h.last)
}

// close ends the program, which first removes its containers. Ended already, it gives its error here.
func (h *helper) close() error {
	_ = h.stdin.Close()
	select {
	case <-h.ended:
	case <-time.After(2 * time.Minute):
		_ = h.cmd.Process.Kill() // the next one removes what it leaves
		<-h.ended
	}
	return wrap("container helper", h.wait())
}
