package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/dca00107/lockstep/internal/ops"
)

// picture is one of two locks and a lease, after so many seconds.
func picture(second int, token uint64) *ops.Picture {
	at := time.Date(2026, 11, 23, 3, 12, second, 0, time.UTC)
	return &ops.Picture{
		Taken: at, Version: "11.4.2-MariaDB",
		Locks: []ops.Lock{
			{Row: ops.Row{Kind: ops.Named, Key: "order:42"}, Mode: ops.Exclusive, Session: 51, Owner: "web-1/4711", Token: token, Held: 5, Waiters: 1},
			{Row: ops.Row{Kind: ops.Named, Key: "order:77\x1b[2J"}, Mode: ops.Exclusive, Session: 51, Held: 9},
		},
		Leases:   []ops.Lease{{Key: "report", Kind: "exclusive", Owner: "web-2/815", Token: 7, Held: 3600, TTL: 30, Left: 20, Renewed: 10}},
		Sessions: map[uint64]ops.Session{51: {ID: 51, User: "app", Host: "web-1", Command: "Sleep", For: 5}},
	}
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
	s := screen{by: "waiters", width: 120, height: 30, every: time.Second}
	s.see(picture(0, 1))
	press := func(model tea.Model, key rune) screen {
		next, _ := model.Update(tea.KeyPressMsg{Code: key, Text: string(key)})
		return next.(screen)
	}
	for _, c := range []struct {
		key  rune
		want string
	}{
		{'w', `order:42 report order:77\x1b[2J`}, {'a', `report order:77\x1b[2J order:42`}, {'k', `order:42 order:77\x1b[2J report`},
	} {
		if got := strings.Join(firsts(press(s, c.key).text()), " "); got != c.want {
			t.Errorf("%c sorts %s, want %s", c.key, got, c.want)
		}
	}
	next, again := s.Update(looked{picture(2, 2), nil})
	if again == nil {
		t.Error("it doesn't look again")
	}
	rated := press(next, 'r')
	if text := rated.text(); firsts(text)[0] != "order:42" || !strings.Contains(text, " 0.5 ") {
		t.Errorf("one grant in two seconds is not first, or not 0.5:\n%s", text)
	}
	next, _ = rated.Update(looked{nil, errors.New("connection refused")})
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
	if _, end := next.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); end == nil || end() != tea.Quit() {
		t.Error("q doesn't end it")
	}
}
