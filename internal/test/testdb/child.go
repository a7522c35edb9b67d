package testdb

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Child is a process that does not outlive this one.
type Child struct {
	process *os.Process
	done    chan struct{}    // closed when the process is gone
	state   *os.ProcessState // how it ended; to be read after done
}

// StartChild starts the command in a process group of its own, so that Ctrl-C
// reaches it through us only, and, on Linux, with the order to the kernel to
// kill it when we end. That order counts for the thread that started the
// process, not for the whole of us, so one thread is kept for it.
func StartChild(cmd *exec.Cmd) (*Child, error) { return startChildIn(nil, cmd) }

// startChildIn starts the command in a network namespace, whose thread is kept anyway, or
// in that of this process.
func startChildIn(n *namespace, cmd *exec.Cmd) (*Child, error) {
	attr := childAttr()
	if cmd.SysProcAttr != nil {
		attr.Credential = cmd.SysProcAttr.Credential
	}
	cmd.SysProcAttr = attr
	c := &Child{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		n.in(func() { err = cmd.Start() })
		if err != nil {
			started <- err
			return
		}
		c.process = cmd.Process
		started <- nil
		_ = cmd.Wait()
		c.state = cmd.ProcessState
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// Running reports whether the process has not ended.
func (c *Child) Running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// Kill ends the process and its group, and returns when it is gone.
func (c *Child) Kill() {
	if c.Running() {
		_ = syscall.Kill(-c.process.Pid, syscall.SIGKILL)
	}
	<-c.done
}

// Signal sends a signal to the process and its group, unless it is gone. After SIGSTOP
// the process stands still when it returns: the kernel stops it when a thread of it has
// got to run, until which the others go on and answer.
func (c *Child) Signal(s syscall.Signal) error {
	if !c.Running() {
		return os.ErrProcessDone
	}
	if err := syscall.Kill(-c.process.Pid, s); err != nil || s != syscall.SIGSTOP {
		return err
	}
	for end := time.Now().Add(waitTimeout); !stopped(c.process.Pid) && c.Running(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("testdb: process %d runs %v after SIGSTOP", c.process.Pid, waitTimeout)
		}
	}
	return nil
}

// Wait returns how the process has ended, when it has.
func (c *Child) Wait() *os.ProcessState {
	<-c.done
	return c.state
}

// run runs a command to its end. The error carries all that it wrote.
func run(ctx context.Context, env []string, name string, args ...string) error {
	return runIn(ctx, nil, env, name, args...)
}

// runIn is run in a network namespace.
func runIn(ctx context.Context, n *namespace, env []string, name string, args ...string) error {
	out, err := os.CreateTemp("", "lockstep-out-")
	if err != nil {
		return err
	}
	defer func() { _, _ = out.Close(), os.Remove(out.Name()) }()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	c, err := startChildIn(n, cmd)
	if err != nil {
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.Kill()
		return fmt.Errorf("%s: %w", name, ctx.Err())
	}
	if !c.state.Success() {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s: %v\n%s", name, c.state, text)
	}
	return nil
}
