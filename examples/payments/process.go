package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// process is a running shop or bank.
type process struct {
	role  string
	cmd   *exec.Cmd
	stdin io.Closer // that it closes, by itself or by the death of this process, tells the other one to stop
	ended chan error
}

// launch starts this program once more, in another role.
func launch(role string, w world, stderr io.Writer) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	where, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	p := &process{role: role, cmd: exec.Command(self), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+role, worldEnv+"="+string(where))
	p.cmd.Stderr = stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// kill ends it at once, wherever it is. It fails when the process had ended by itself.
func (p *process) kill() error {
	select {
	case err := <-p.ended:
		return fmt.Errorf("the %s ended by itself: %w", p.role, errors.Join(err, errors.New("before it was killed")))
	default:
	}
	err := p.cmd.Process.Kill()
	<-p.ended
	return err
}

// stop lets it finish what it has begun, and waits. A signal would end it at once while it has only just been started.
func (p *process) stop(within time.Duration) error {
	err := p.stdin.Close()
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case ended := <-p.ended:
		err = errors.Join(err, ended)
	case <-t.C:
		err = errors.Join(err, fmt.Errorf("the %s did not stop within %v", p.role, within), p.kill())
	}
	return err
}
