//go:build unix

package provide

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a child in a process group of its own that dies with this process.
type process struct {
	pid  int
	done chan struct{} // closed once it has been waited for
}

// startProcess starts cmd. When this process dies, the kernel sends the child orphanSignal (on Linux).
func startProcess(cmd *exec.Cmd, orphanSignal syscall.Signal) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd.SysProcAttr, orphanSignal)
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run forks the child and waits for it. The kernel ties a parent-death signal to the thread that forked, so this
// goroutine keeps its thread for as long as the child lives.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	started <- nil
	_ = cmd.Wait() // how it ended is in its output
	close(p.done)
}

// alive reports whether the process has not ended yet.
func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal sends sig to the process and its group.
func (p *process) signal(sig syscall.Signal) error {
	if !p.alive() {
		return os.ErrProcessDone
	}
	return syscall.Kill(-p.pid, sig)
}

// stop asks the process to end with SIGTERM and waits for it, at most for the given time; then it kills it.
func (p *process) stop(within time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return ignoreDone(err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(within):
		return p.kill()
	}
}

// kill ends the whole group with SIGKILL, frozen or not, and waits for it.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return ignoreDone(err)
	}
	<-p.done
	return nil
}

func ignoreDone(err error) error {
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
