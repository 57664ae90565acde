package main

import (
	"os/exec"
	"testing"
	"time"
)

func TestOwner(t *testing.T) {
	if self().start == "" {
		t.Fatal("this process is not in /proc")
	}
	got, err := parseOwner(self().String())
	if err != nil || got != self() {
		t.Fatalf("parseOwner(%q) = %v, %v", self(), got, err)
	}
	for _, s := range []string{"", "scope/1", "scope/one/2", "scope/1/2/3"} {
		if _, err := parseOwner(s); err == nil {
			t.Errorf("parseOwner(%q): no error", s)
		}
	}
}

// An orphan that nobody waits for has ended all the same.
func TestStartTimeOfAZombie(t *testing.T) {
	cmd := exec.Command("/bin/cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if startTime(cmd.Process.Pid) == "" {
		t.Error("the process lives and is not found")
	}
	stdin.Close()
	for deadline := time.Now().Add(10 * time.Second); startTime(cmd.Process.Pid) != ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the process has ended and still counts as living")
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestDead(t *testing.T) {
	ended := exec.Command("/bin/true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	now, yesterday := time.Now(), time.Now().Add(-25*time.Hour)
	reused, foreign, unknown := self(), self(), self()
	reused.start += "0"
	foreign.scope = "another machine"
	unknown.start = ""
	for _, tt := range []struct {
		name    string
		owner   owner
		created time.Time
		want    bool
	}{
		{"alive", self(), now, false},
		{"alive for long", self(), yesterday, false},
		{"ended", owner{scope: self().scope, pid: ended.Process.Pid, start: "1"}, now, true},
		{"its number used again", reused, now, true},
		{"elsewhere", foreign, now, false},
		{"elsewhere, long ago", foreign, yesterday, true},
		{"cannot be known", unknown, now, false},
		{"cannot be known, long ago", unknown, yesterday, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.owner.dead(tt.created); got != tt.want {
				t.Errorf("dead = %v, want %v", got, tt.want)
			}
		})
	}
}
