package testdb

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// child is a process that does not outlive this one.
type child struct {
	process *os.Process
	done    chan struct{}    // closed when the process is gone
	state   *os.ProcessState // how it ended; to be read after done
}

// startChild starts the command in a process group of its own, so that Ctrl-C
// reaches it through us only, and, on Linux, with the order to the kernel to
// kill it when we end. That order counts for the thread that started the
// process, not for the whole of us, so one thread is kept for it.
func startChild(cmd *exec.Cmd) (*child, error) {
	attr := childAttr()
	if cmd.SysProcAttr != nil {
		attr.Credential = cmd.SysProcAttr.Credential
	}
	cmd.SysProcAttr = attr
	c := &child{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
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

func (c *child) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// kill ends the process and its group, and returns when it is gone.
func (c *child) kill() {
	if c.running() {
		_ = syscall.Kill(-c.process.Pid, syscall.SIGKILL)
	}
	<-c.done
}

// run runs a command to its end. The error carries all that it wrote.
func run(ctx context.Context, env []string, name string, args ...string) error {
	out, err := os.CreateTemp("", "lockstep-out-")
	if err != nil {
		return err
	}
	defer func() { _, _ = out.Close(), os.Remove(out.Name()) }()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	c, err := startChild(cmd)
	if err != nil {
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.kill()
		return fmt.Errorf("%s: %w", name, ctx.Err())
	}
	if !c.state.Success() {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s: %v\n%s", name, c.state, text)
	}
	return nil
}
