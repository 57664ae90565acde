package main

import (
	"bufio"
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRunUntilInterrupted: what runs gets its interrupt, and what does not end of it is killed, children and all.
func TestRunUntilInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.Command("sh", "-c", "trap 'echo stopping; exit 7' INT; echo ready; while :; do sleep 0.05; done")
	ownGroup(cmd)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var lines []string
	err = runUntil(ctx, cmd, func() error {
		scanner := bufio.NewScanner(stdout)
		for scanner.Scan() {
			lines = append(lines, scanner.Text())
			if scanner.Text() == "ready" {
				cancel()
			}
		}
		return scanner.Err()
	})
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode())
	require.Equal(t, []string{"ready", "stopping"}, lines)
}
