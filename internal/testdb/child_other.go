//go:build unix && !linux

package testdb

import "syscall"

// childAttr cannot tie the child to us here: a server may outlive a test
// process that is killed.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
