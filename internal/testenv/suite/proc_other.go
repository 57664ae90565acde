//go:build !unix

package main

import "os/exec"

// There are no process groups here: an interrupt from the terminal reaches every process by itself.
func ownGroup(*exec.Cmd) {}

func interruptGroup(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
