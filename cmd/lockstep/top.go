package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/dca00107/lockstep/internal/ops"
)

func (a *app) top() *cobra.Command {
	every := time.Second
	cmd := &cobra.Command{
		Use: "top", Args: cobra.NoArgs,
		Short: "Watch locks and leases, live",
		Long: `Watch what is held, live: w sorts by waiters, a by age, r by the rate of grants, k by
key, the arrows scroll, q ends.

Privileges: as for locks.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return failed(usage, "--every %v: it must be at least 100ms", every)
			}
			if !terminal(a.in) || !terminal(a.out) {
				return failed(usage, "top needs a terminal: lockstep locks prints the same once")
			}
			if err := a.open(); err != nil {
				return err
			}
			room := ops.New(a.db)
			look := func() (*ops.Picture, error) {
				ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
				defer cancel()
				return room.Look(ctx)
			}
			first, err := look()
			if err != nil {
				return err
			}
			s := screen{look: look, every: every, by: "waiters", width: 120, height: 30}
			s.see(first)
			_, err = tea.NewProgram(s, tea.WithContext(cmd.Context()), tea.WithInput(a.in), tea.WithOutput(a.out), tea.WithWindowSize(s.width, s.height)).Run()
			if errors.Is(err, tea.ErrProgramKilled) && cmd.Context().Err() != nil {
				return nil // ended from outside, as by q
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&every, "every", every, "how often to look")
	return cmd
}

// terminal tells whether a file is one; what is no file is a test's.
func terminal(stream any) bool {
	file, ok := stream.(*os.File)
	return !ok || term.IsTerminal(file.Fd())
}

// screen is the state of top.
type screen struct {
	look  func() (*ops.Picture, error)
	every time.Duration

	items         []item
	taken         time.Time
	summary       string
	err           error
	by            string
	from          int
	width, height int
	tokens        map[string]seenToken
}

// item is a line: a lock or a lease.
type item struct {
	key, kind, holder, does string
	waiters                 int
	age                     ops.Seconds
	rate                    float64 // grants per second, as far as looks could tell
}

// seenToken is the last token of a key, and how often it has changed.
type seenToken struct {
	token  uint64
	since  time.Time
	grants int
}

// see takes over a picture.
func (s *screen) see(p *ops.Picture) {
	tokens := make(map[string]seenToken)
	rate := func(key string, token uint64) float64 {
		was, known := s.tokens[key]
		switch {
		case !known:
			was = seenToken{token, p.Taken, 0}
		case was.token != token:
			was.token, was.grants = token, was.grants+1
		}
		tokens[key] = was
		if seconds := p.Taken.Sub(was.since).Seconds(); seconds > 0 {
			return float64(was.grants) / seconds
		}
		return 0
	}
	s.items = nil
	for _, l := range p.Locks {
		session := p.Sessions[l.Session]
		s.items = append(s.items, item{l.String(), string(l.Mode), fmt.Sprintf("%d %s %s", l.Session, session.Who(), l.Owner), session.Doing(), l.Waiters, l.Held, rate(l.String(), l.Token)})
	}
	for _, l := range p.Leases {
		if l.Kind != "waiter" {
			does := fmt.Sprintf("%s left, renewed %s ago", l.Left, l.Renewed)
			s.items = append(s.items, item{l.Key, "lease, " + l.Kind, l.Owner + " " + l.Note, does, l.Waiters, l.Held, rate(fmt.Sprint("lease ", l.Key, l.Slot), l.Token)})
		}
	}
	s.tokens, s.taken, s.err = tokens, p.Taken, nil
	s.summary = fmt.Sprintf("%d locks, %d leases, %d waiting, MariaDB or MySQL %s", len(p.Locks), len(p.Leases), len(p.Waits), p.Version)
	s.sort()
}

func (s *screen) sort() {
	slices.SortStableFunc(s.items, func(a, b item) int {
		switch s.by {
		case "waiters":
			return cmp.Or(-cmp.Compare(a.waiters, b.waiters), -cmp.Compare(a.age, b.age), strings.Compare(a.key, b.key))
		case "age":
			return cmp.Or(-cmp.Compare(a.age, b.age), strings.Compare(a.key, b.key))
		case "rate":
			return cmp.Or(-cmp.Compare(a.rate, b.rate), strings.Compare(a.key, b.key))
		}
		return strings.Compare(a.key, b.key)
	})
}

type looked struct {
	*ops.Picture
	err error
}

func (s screen) again() tea.Cmd {
	return tea.Tick(s.every, func(time.Time) tea.Msg {
		p, err := s.look()
		return looked{p, err}
	})
}

// Init looks again after a while.
func (s screen) Init() tea.Cmd { return s.again() }

// Update takes over a picture, or does what a key says.
func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case looked:
		if s.err = msg.err; s.err == nil {
			s.see(msg.Picture)
		}
		return s, s.again()
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return s, tea.Quit
		case "w", "a", "r", "k":
			s.by = map[string]string{"w": "waiters", "a": "age", "r": "rate", "k": "key"}[msg.String()]
			s.items = slices.Clone(s.items)
			s.sort()
		case "down", "pgdown":
			s.from = max(0, min(s.from+map[bool]int{true: s.page(), false: 1}[msg.String() == "pgdown"], len(s.items)-1))
		case "up", "pgup":
			s.from = max(0, s.from-map[bool]int{true: s.page(), false: 1}[msg.String() == "pgup"])
		}
	}
	return s, nil
}

// page is how many lines are below the head.
func (s screen) page() int { return max(1, s.height-4) }

// View draws what fits on the screen.
func (s screen) View() tea.View {
	v := tea.NewView(s.text())
	v.AltScreen = true
	return v
}

func (s screen) text() string {
	var b strings.Builder
	line := func(text string) { b.WriteString(clipped(text, max(20, s.width)) + "\n") }
	line(fmt.Sprintf("lockstep top  %s  %s", when(s.taken), s.summary))
	if s.err != nil {
		line("The server doesn't answer: " + cell(s.err.Error()))
	} else {
		line("by " + s.by + ": w waiters, a age, r rate, k key, arrows scroll, q ends")
	}
	const format = "%-30s %7s %8s %7s  %-16s %-36s %s"
	line(fmt.Sprintf(format, "KEY", "WAITERS", "HELD", "RATE/S", "KIND", "HOLDER", "DOES"))
	for _, i := range s.items[min(s.from, len(s.items)):] {
		if strings.Count(b.String(), "\n") >= s.height-1 {
			break
		}
		line(fmt.Sprintf(format, clipped(cell(i.key), 30), number(i.waiters), i.age, fmt.Sprintf("%.1f", i.rate), i.kind, clipped(cell(i.holder), 36), cell(i.does)))
	}
	return b.String()
}
