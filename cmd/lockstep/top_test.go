package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// picture is one of two locks and a lease, after so many seconds.
func picture(second int) looked {
	at := time.Date(2026, 11, 23, 3, 12, second, 0, time.UTC)
	token := uint64(at.UnixMicro())
	before := token - 2500
	return looked{updates: float64(1000 + 100*second), Picture: &ops.Picture{
		Taken: at, Version: "11.4.2-MariaDB",
		Locks: []ops.Lock{
			{Row: ops.Row{Kind: ops.Named, Key: "order:42"}, Mode: ops.Exclusive, Session: 51, Owner: "web-1/4711", Token: token, Before: before, Held: 5, Waiters: 1},
			{Row: ops.Row{Kind: ops.Named, Key: "order:77\x1b[2J"}, Mode: ops.Exclusive, Session: 51, Held: 9},
		},
		Leases:   []ops.Lease{{Key: "report", Kind: "exclusive", Owner: "web-2/815", Token: 7, Held: 3600, TTL: 30, Left: 20, Renewed: 10}},
		Sessions: map[uint64]ops.Session{51: {ID: 51, User: "app", Host: "web-1", Command: "Sleep", For: 5}},
	}}
}

// firsts returns the first words of the lines below the head.
func firsts(text string) (words []string) {
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[3:] {
		words = append(words, strings.Fields(line)[0])
	}
	return words
}

// TestTop proves that the live table sorts as it is told, shows rates and errors, scrolls,
// and ends.
func TestTop(t *testing.T) {
	t.Parallel()
	s := screen{by: "waiters", rates: new(ops.Rates), width: 120, height: 30, every: time.Second}
	s.see(picture(0))
	press := func(model tea.Model, key rune) screen {
		next, _ := model.Update(tea.KeyPressMsg{Code: key, Text: string(key)})
		return next.(screen)
	}
	for _, c := range []struct {
		key  rune
		want string
	}{
		{'w', `order:42 report "order:77\x1b[2J"`}, {'a', `report "order:77\x1b[2J" order:42`}, {'k', `"order:77\x1b[2J" order:42 report`},
	} {
		if got := strings.Join(firsts(press(s, c.key).text()), " "); got != c.want {
			t.Errorf("%c sorts %s, want %s", c.key, got, c.want)
		}
	}
	old := picture(0)
	old.Ages = ops.Ages{LocksAge: 9, LeasesAge: 12}
	s.see(old)
	if text := s.text(); !strings.Contains(text, "2 locks 9.0s ago, 1 leases 12s ago") {
		t.Errorf("it doesn't say how old locks and leases are:\n%s", text)
	}
	partly := picture(1)
	partly.Gaps = []ops.Gap{{What: "programs are not known"}, {What: "what other users hold is not known", Fix: "GRANT PROCESS ON *.* TO 'op'@'%'", Hides: true, Denied: true}}
	s.see(partly)
	if text := s.text(); !strings.Contains(text, "\nNot seen: what other users hold is not known: GRANT PROCESS ON *.* TO 'op'@'%'\nKEY ") || strings.Contains(text, "programs") {
		t.Errorf("it doesn't say what isn't seen:\n%s", text)
	}
	next, again := s.Update(picture(2))
	if again == nil {
		t.Error("it doesn't look again")
	}
	rated := press(next, 'r')
	if text := rated.text(); firsts(text)[0] != "order:42" || !strings.Contains(text, " 100.0 ") {
		t.Errorf("a key that was granted 2.5 ms after the grant before is not first, or not limited by the server's count:\n%s", text)
	}
	next, _ = rated.Update(looked{err: errors.New("connection refused")})
	if text := next.(screen).text(); !strings.Contains(text, "connection refused") || !strings.Contains(text, "order:42") {
		t.Errorf("an error is not shown above what was seen last:\n%s", text)
	}
	next, _ = next.Update(tea.KeyPressMsg{Code: tea.KeyDown})
	if got := firsts(next.(screen).text()); len(got) != 2 {
		t.Errorf("after an arrow down there are %q", got)
	}
	next, _ = next.Update(tea.WindowSizeMsg{Width: 40, Height: 5})
	for _, line := range strings.Split(strings.TrimSpace(next.(screen).text()), "\n") {
		if len([]rune(line)) > 40 {
			t.Errorf("the line %q is wider than the screen", line)
		}
	}
	next, _ = next.Update(tea.WindowSizeMsg{Width: 20, Height: 2})
	before := next.(screen).from
	next, _ = next.Update(tea.KeyPressMsg{Code: tea.KeyPgDown})
	if from := next.(screen).from; from != before+1 {
		t.Errorf("on a small screen page down leads from line %d to %d", before, from)
	}
	next, _ = next.Update(tea.KeyPressMsg{Code: tea.KeyPgUp})
	if from := next.(screen).from; from != before {
		t.Errorf("on a small screen page up leads to line %d, not %d", from, before)
	}
	if _, end := next.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); end == nil || end() != tea.Quit() {
		t.Error("q doesn't end it")
	}
}

// TestTopAt80Columns proves that 80 columns show who holds a key, in 16 characters at least, and that
// the rest is reached sideways, beside the key.
func TestTopAt80Columns(t *testing.T) {
	t.Parallel()
	var model tea.Model = func() screen {
		s := screen{by: "waiters", rates: new(ops.Rates), width: 80, height: 24}
		s.see(picture(0))
		return s
	}()
	line := func() string {
		for text := range strings.Lines(model.(screen).text()) {
			if strings.HasPrefix(text, "order:42 ") {
				return strings.TrimRight(text, "\n")
			}
		}
		return ""
	}
	if text := line(); !strings.Contains(text, "51 app@web-1 ") || len([]rune(text)) > 80 {
		t.Errorf("80 columns show %q", text)
	}
	if head := strings.Split(model.(screen).text(), "\n")[2]; 80-strings.Index(head, "HOLDER") < 16 {
		t.Errorf("the holder has fewer than 16 characters: %q", head)
	}
	scrolled := func(code rune, wanted string) {
		t.Helper()
		for range 40 {
			if strings.Contains(line(), wanted) {
				return
			}
			model, _ = model.Update(tea.KeyPressMsg{Code: code})
		}
		t.Errorf("%q isn't reached: %q", wanted, line())
	}
	scrolled(tea.KeyRight, "51 app@web-1 web-1/4711")
	scrolled(tea.KeyRight, "idle 5.0s")
	for range 60 { // beyond the end of all lines
		model, _ = model.Update(tea.KeyPressMsg{Code: tea.KeyRight})
	}
	scrolled(tea.KeyLeft, "exclusive")
}

// TestTopNeedsATerminal proves that top says so if its input or output is none.
func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	check(t, err)
	defer func() { _ = null.Close() }()
	read, write, err := os.Pipe()
	check(t, err)
	defer func() { _, _ = read.Close(), write.Close() }()
	for name, c := range map[string]struct {
		in  io.Reader
		out io.Writer
	}{
		"input": {null, io.Discard}, "output": {strings.NewReader(""), write},
	} {
		var said bytes.Buffer
		code := run(t.Context(), []string{"top"}, func(string) string { return "" }, c.in, c.out, &said)
		if code != usage || !strings.Contains(said.String(), "needs a terminal") {
			t.Errorf("%s: top returns %d, and prints %s", name, code, &said)
		}
	}
}

// shared is a buffer for two goroutines.
type shared struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shared) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(text)
}

func (s *shared) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

// TestTopIsInterrupted proves that top that is interrupted ends as by q.
func TestTopIsInterrupted(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		in, typed := io.Pipe()
		defer func() { _ = typed.Close() }()
		out, said, code := new(shared), new(shared), make(chan int, 1)
		go func() {
			code <- run(ctx, []string{"top"}, s.getenv, in, out, said)
		}()
		if !testdb.Await(time.Minute, func() bool { return out.has("lockstep top") }) {
			t.Fatal("it draws nothing")
		}
		interrupt()
		select {
		case got := <-code:
			if got != done || said.has("lockstep") {
				t.Errorf("it returns %d, and prints %s", got, &said.text)
			}
		case <-time.After(time.Minute):
			t.Error("it doesn't end")
		}
	})
}

// TestRate proves that top shows how often a hot key is granted, not how often it has looked.
func TestRate(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		hot := txlock.Named("hot")
		s.must(txlock.Ensure(s.ctx, s.pool, hot))
		ctx, stop := context.WithCancel(s.ctx)
		var granted atomic.Int64
		var all sync.WaitGroup
		defer func() { stop(); all.Wait() }()
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					if locksqlc.Run(ctx, s.pool, []txlock.Key{hot}, func(*sql.Tx) error { return nil }) == nil {
						granted.Add(1)
					}
				}
			})
		}
		room, watched := ops.New(s.db.Admin()), screen{by: "rate", rates: new(ops.Rates), width: 120, height: 30}
		var first time.Time
		var before int64
		right := testdb.Await(time.Minute, func() bool {
			p, err := room.Look(s.ctx)
			if errors.Is(err, txlock.ErrWaitTimeout) {
				return false // a busy server ends a look that takes too long, and top looks again
			}
			s.must(err)
			updates, err := room.Updates(s.ctx)
			s.must(err)
			if first.IsZero() {
				first, before = time.Now(), granted.Load()
			}
			watched.see(looked{p, updates, nil})
			truth := float64(granted.Load()-before) / time.Since(first).Seconds()
			return len(watched.items) == 1 && watched.items[0].rate.PerSecond > truth/2 && watched.items[0].rate.PerSecond < truth*2 && truth > 20
		})
		if !right {
			t.Errorf("%d grants in %v are shown as %+v", granted.Load()-before, time.Since(first), watched.items)
		}
	}, testdb.Open)
}
