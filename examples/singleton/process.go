package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// What a worker says.
const (
	holds = "holds" // the lead, and goes on from the item
	doing = "doing" // it plans the item
	ends  = "ends"  // with nothing left to plan
	loses = "loses" // the lead
	gone  = "gone"  // the process has ended; said by who watches it
)

// report is one line of a worker.
type report struct {
	Worker string
	What   string
	Token  uint64
	Item   int64

	at  time.Time // when it was read
	err error     // of a process that has ended
}

// process is a worker that was started.
type process struct {
	name    string
	command *exec.Cmd
	out     io.Reader
}

// startProcess starts this program as a worker. The end of the context kills it.
func startProcess(ctx context.Context, name string, c config, dsn string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, command: exec.CommandContext(ctx, program, c.arguments(name)...)}
	p.command.Env = append(os.Environ(), dsnVariable+"="+dsn)
	p.command.Stderr = os.Stderr
	// Its input ends with this process, so that it doesn't outlive us. Wait closes it.
	if _, err := p.command.StdinPipe(); err != nil {
		return nil, err
	}
	if p.out, err = p.command.StdoutPipe(); err != nil {
		return nil, err
	}
	return p, p.command.Start()
}

// watch hands on what the worker says, and at last that it is gone.
func (p *process) watch(to chan<- report) {
	lines := json.NewDecoder(p.out)
	for {
		var r report
		if err := lines.Decode(&r); err != nil {
			err = errors.Join(notTheEnd(err), p.command.Wait())
			to <- report{Worker: p.name, What: gone, at: time.Now(), err: err}
			return
		}
		r.at = time.Now()
		to <- r
	}
}

// notTheEnd drops the error of a stream that has simply ended.
func notTheEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return fmt.Errorf("read what it says: %w", err)
}

// kill ends the process by SIGKILL: it runs no deferred function any more.
func (p *process) kill() error { return p.command.Process.Kill() }
