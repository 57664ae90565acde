//go:build unix

package provide

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTempDirsOfTheDeadAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	age := func(dir string) {
		long := time.Now().Add(-time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(dir, lockName), long, long))
	}
	live, err := newTempDir()
	require.NoError(t, err)
	age(live.path)
	dead, err := newTempDir()
	require.NoError(t, err)
	require.NoError(t, dead.lock.Close()) // as the kernel does for a process that dies
	age(dead.path)
	young, err := newTempDir()
	require.NoError(t, err)
	require.NoError(t, young.lock.Close())
	foreign, err := os.MkdirTemp("", tempPrefix)
	require.NoError(t, err)

	removeOrphans()
	require.DirExists(t, live.path)
	require.NoDirExists(t, dead.path)
	require.DirExists(t, young.path)
	require.DirExists(t, foreign)
	require.NoError(t, live.remove())
	require.NoDirExists(t, live.path)
}
