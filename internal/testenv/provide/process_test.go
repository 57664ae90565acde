//go:build unix

package provide

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProcess(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script string
		end    func(*process) error
	}{
		{"stops when asked", "sleep 60", func(p *process) error { return p.stop(time.Minute) }},
		{"is killed when it does not stop", "trap '' TERM; sleep 60 & sleep 60", func(p *process) error { return p.stop(10 * time.Millisecond) }},
		{"is killed", "sleep 60", (*process).kill},
		{"is killed while frozen", "sleep 60", func(p *process) error {
			if err := p.signal(syscall.SIGSTOP); err != nil {
				return err
			}
			return p.kill()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := startProcess(exec.Command("/bin/sh", "-c", tt.script), syscall.SIGKILL)
			require.NoError(t, err)
			require.True(t, p.alive())
			require.NoError(t, tt.end(p))
			require.False(t, p.alive())
			require.NoError(t, p.kill(), "once more")
			require.NoError(t, p.stop(time.Minute), "once more")
		})
	}
	_, err := startProcess(exec.Command("/no/such/program"), syscall.SIGKILL)
	require.Error(t, err)
}
