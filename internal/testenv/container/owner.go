package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ownerLabel names the process a container was started by.
const ownerLabel = "com.github.warrenmq.warren.testenv.owner"

// foreignAge is when a container whose owner cannot be looked up, on another machine, in another namespace or on a
// system without /proc, counts as left behind.
const foreignAge = 24 * time.Hour

// owner is a process, told from another that gets the same number later.
type owner struct {
	scope string // where the number means something
	pid   int
	start string // when it started, in the kernel's own clock
}

// self returns this process.
var self = sync.OnceValue(func() owner {
	pid := os.Getpid()
	return owner{scope: pidScope(), pid: pid, start: startTime(pid)}
})

func (o owner) String() string { return fmt.Sprintf("%s/%d/%s", o.scope, o.pid, o.start) }

func parseOwner(s string) (owner, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return owner{}, fmt.Errorf("owner %q", s)
	}
	pid, err := strconv.Atoi(parts[1])
	return owner{scope: parts[0], pid: pid, start: parts[2]}, err
}

// dead reports whether the owner of something made at the given time has certainly ended.
func (o owner) dead(created time.Time) bool {
	if o.scope != self().scope || o.start == "" {
		return time.Since(created) > foreignAge
	}
	return startTime(o.pid) != o.start
}

// pidScope names the kernel and the namespace that process numbers belong to.
func pidScope() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	host, _ := os.Hostname()
	return strings.ReplaceAll(strings.Join([]string{host, strings.TrimSpace(string(boot)), namespace}, ","), "/", "_")
}

// startTime returns when a process started, in clock ticks since boot, and "" for one that is not there, or has ended and
// waits for its parent to notice: in a container nobody may do so for orphans.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The command's name, in parentheses, may contain anything. starttime is field 22; field 3 follows the name.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}
