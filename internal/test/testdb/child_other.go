//go:build unix && !linux

package testdb

import "syscall"

// childAttr cannot tie the child to us here: a server may outlive a test
// process that is killed.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped can't tell here whether a process runs: it is taken to stand still.
func stopped(int) bool { return true }
