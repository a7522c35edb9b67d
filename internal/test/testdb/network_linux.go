package testdb

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// namespace is a network namespace, or this machine's. It is that of a thread, which starts
// the processes in it: the kernel removes it with them and the thread, so that nothing is
// left of it when we end, however that is.
type namespace struct {
	path string
	work chan func()
	done chan struct{}
}

// newNamespace makes one.
func newNamespace() (*namespace, error) {
	n := &namespace{work: make(chan func()), done: make(chan struct{})}
	made := make(chan error, 1)
	go func() {
		defer close(n.done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := syscall.Unshare(syscall.CLONE_NEWNET)
		n.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), syscall.Gettid())
		made <- err
		for f := range n.work {
			f()
		}
	}()
	err := <-made
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, syscall.EPERM):
		err = fmt.Errorf("a network namespace needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN: %w", err)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS):
		err = fmt.Errorf("the kernel has no network namespaces (CONFIG_NET_NS): %w", err)
	}
	return nil, errors.Join(err, n.close())
}

// in runs f in the namespace, where it may make sockets and start processes.
func (n *namespace) in(f func()) {
	if n == nil || n.work == nil {
		f()
		return
	}
	done := make(chan struct{})
	n.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// close ends the namespace when its last process has ended.
func (n *namespace) close() error {
	if n != nil && n.work != nil {
		close(n.work)
		<-n.done
	}
	return nil
}
