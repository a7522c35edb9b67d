package main

import (
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestCommands calls the commands that no situation shows.
func TestCommands(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		var measured measuredForm
		s.answer(done, &measured, "bench", "--lasts", "40ms", "--workers", "2", "--yes")
		if len(measured.Measured) != 4 || measured.Measured[1].PerSecond <= 0 {
			t.Errorf("bench has measured %v", measured)
		}

		s.must(txlock.Ensure(s.ctx, s.pool, orders.Key(1)))
		s.db.Exec(t, "UPDATE lockstep_locks SET locked_us = 1 WHERE name = 'order:1'")
		s.db.Exec(t, "INSERT INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us, paused_us) VALUES ('old', 1, 1, 1, '', 1, 1, 1, 0, '-', 1, 0), ('paused', 1, 1, 1, '', 1, 1, 1, 0, '-', 1, 1)")
		var removed removedForm
		s.answer(done, &removed, "purge", "--older-than", "1h", "--yes")
		if removed.Removed["locks"] != 1 || removed.Removed["jobs"] != 1 {
			t.Errorf("purge has removed %v", removed)
		}
		if output, code := s.call("purge", "--older-than", "1h", "--yes"); code != nothing {
			t.Errorf("purge returns %d where there is nothing to remove:\n%s", code, output)
		}

		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
		deadline := time.Now().Add(time.Minute)
		for locks := (locksForm{}); len(locks.Locks) != 1 || locks.Locks[0].Key != "order:42" || locks.Sessions[51].User != "app"; testdb.Refresh() {
			s.answer(done, &locks, "locks")
			if time.Now().After(deadline) {
				t.Fatalf("locks shows %v", locks)
			}
		}
		keyboard, press := io.Pipe()
		defer press.Close()
		screen := &watched{until: "order:42", then: func() { _, _ = press.Write([]byte("q")) }}
		if code := run(t.Context(), []string{"top", "--every", "100ms"}, s.getenv, keyboard, screen, screen); code != done {
			t.Errorf("top returns %d and draws:\n%s", code, screen.text.String())
		}
	})
}

// watched is a screen that does something when it shows a text.
type watched struct {
	mu    sync.Mutex
	text  strings.Builder
	until string
	then  func()
	once  sync.Once
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if strings.Contains(w.text.String(), w.until) {
		w.once.Do(func() { go w.then() })
	}
	return len(p), nil
}
