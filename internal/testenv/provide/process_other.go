//go:build unix && !linux

package provide

import "syscall"

// dieWithParent does nothing: only Linux tells a child that its parent died.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
