package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
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
		leasetest.Equal(t, fmt.Sprintf("how %c sorts", c.key), strings.Join(firsts(press(s, c.key).text()), " "), c.want)
	}
	old := picture(0)
	old.Ages = ops.Ages{LocksAge: 9, LeasesAge: 12}
	s.see(old)
	leasetest.Says(t, "how old locks and leases are", s.text(), "2 locks 9.0s ago, 1 leases 12s ago")
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
	leasetest.Equal(t, "the first line of a small screen after page down", next.(screen).from, before+1)
	next, _ = next.Update(tea.KeyPressMsg{Code: tea.KeyPgUp})
	leasetest.Equal(t, "the first line of a small screen after page up", next.(screen).from, before)
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

// TestScreens proves that an interrupt ends a question at once, and top as q does, which shows what is held.
func TestScreens(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
		for _, c := range []struct {
			command, until string
			pressed        string // "" for an interrupt
			code           int
			says           string // behind the name of the command
		}{{"purge", "Type yes", "", declined, "nothing was done"}, {"top", "lockstep top", "", done, ""}, {"top", "order:42", "q", done, ""}} {
			ctx, interrupt := context.WithCancel(t.Context())
			keyboard, typed := io.Pipe()
			defer func() { _ = typed.Close() }()
			screen := &watched{until: c.until, then: interrupt}
			if c.pressed != "" {
				screen.then = func() { _, _ = io.WriteString(typed, c.pressed) }
			}
			code := make(chan int, 1)
			go func() { code <- run(ctx, []string{c.command}, s.getenv, keyboard, screen, screen) }()
			select {
			case got := <-code:
				if _, says, _ := strings.Cut(screen.text.String(), "lockstep: "); got != c.code || !strings.HasPrefix(says, c.says) || c.says == "" && says != "" {
					t.Errorf("%s returns %d, and prints %s", c.command, got, screen.text.String())
				}
			case <-time.After(time.Minute):
				t.Errorf("%s doesn't end", c.command)
			}
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

// topPage is what top shows of MySQL: the picture in the README is made of it by make
// diagrams.
const topPage = "../../docs/diagrams/lockstep-top.txt"

// TestTopPage proves that top shows real servers as the README does.
func TestTopPage(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		_, holder := s.begin()
		s.lock(holder, orders.Key(42), orders.Key(77))
		for range 2 {
			tx, scope := s.begin()
			s.waits(tx, func(ctx context.Context) error { return second(scope.Lock(ctx, orders.Key(42))) })
		}
		leases := s.manager(lease.WithLabel("the nightly report"))
		s.must(second(leases.Acquire(lease.WithOwner(s.ctx, "web-2/815"), txlock.Named("report"))))
		exports := leasetest.Got(leases.Semaphore(txlock.Named("exports"), 3))(s)
		s.must(second(exports.TryAcquire(lease.WithOwner(s.ctx, "web-3/77"))))
		if page := s.top(); s.db.Engine() != testdb.MySQL {
			for _, key := range []string{"order:42", "order:77", "report", "exports"} {
				if !strings.Contains(page, "\n"+key+" ") {
					t.Errorf("there is no %s:\n%s", key, page)
				}
			}
		} else if want, _ := os.ReadFile(topPage); page != string(want) && *update {
			s.must(os.WriteFile(topPage, []byte(page), 0o644))
		} else if page != string(want) {
			t.Errorf("top shows:\n%s\n%s has (go test -update writes it):\n%s", page, topPage, want)
		}
	})
}

// top returns what the live table shows, when the servers have noticed all waits, and tests beside it hide nothing, with the
// sessions, users, hosts and times of the page.
func (s *stage) top() string {
	s.Helper()
	var picture *ops.Picture
	if !testdb.Await(time.Minute, func() (seen bool) {
		testdb.Refresh()
		var err error
		picture, err = ops.New(s.db.Admin()).Look(s.Context())
		s.must(err)
		return len(picture.Waits) == 2 && len(picture.Leases) == 2 && len(picture.Hiding()) == 0
	}) {
		s.Fatalf("two don't wait, two leases are not held, or not all is seen: %+v", picture)
	}
	picture.Version, picture.Taken = "9.7.4", time.Date(2026, 11, 23, 3, 12, 0, 0, time.UTC)
	sessions := make(map[uint64]ops.Session)
	for i := range picture.Locks {
		l := &picture.Locks[i]
		l.Held = 12
		session := picture.Sessions[l.Session]
		session.User, session.Host, session.For = "app", "web-1", 12
		l.Session = 51
		sessions[51] = session
	}
	picture.Sessions = sessions
	for i := range picture.Leases {
		l := &picture.Leases[i]
		l.Held, l.Left, l.Renewed = 100, 25, 5
	}
	live := screen{by: "waiters", rates: new(ops.Rates), width: 160, height: 30, every: time.Second}
	live.see(looked{Picture: picture})
	return live.text()
}
