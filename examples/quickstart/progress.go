package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// progress shows how a run goes on: on a terminal as one line that is rewritten,
// elsewhere as a line a second.
type progress struct {
	out      io.Writer
	terminal bool
}

func newProgress(out *os.File) *progress {
	info, err := out.Stat()
	return &progress{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

// watch shows a run until stop is called, which waits for the last line.
func (p *progress) watch(run string, sold *atomic.Int64) (stop func()) {
	every := time.Second
	if p.terminal {
		every = 100 * time.Millisecond
	}
	begin, done := time.Now(), make(chan struct{})
	show := func() {
		line := fmt.Sprintf("%s: %d sold after %.1f s", run, sold.Load(), time.Since(begin).Seconds())
		if p.terminal {
			line = "\r\x1b[K" + line // back to the start of the line, and clear it
		} else {
			line += "\n"
		}
		_, _ = io.WriteString(p.out, line) // the demo goes on without its progress
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				show()
			case <-done:
				show()
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		if p.terminal {
			_, _ = io.WriteString(p.out, "\r\x1b[K")
		}
	}
}
