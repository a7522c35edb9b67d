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
	"github.com/dca00107/lockstep/internal/rawsql"
)

func (a *app) top() *cobra.Command {
	every := time.Second
	cmd := &cobra.Command{
		Use: "top", Args: cobra.NoArgs,
		Short: "Watch locks and leases, live",
		Long: `Watch what is held, live: w sorts by waiters, a by age, r by the rate of grants, k by
key, the arrows scroll up, down and sideways, q ends.

Privileges: as for locks.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return failed(usage, "--every %v: it must be at least 100ms", every)
			}
			if !terminal(a.in) || !terminal(a.screen) {
				return failed(usage, "top needs a terminal: lockstep locks prints the same once")
			}
			if err := a.open(); err != nil {
				return err
			}
			room := ops.New(a.db)
			look := func() looked {
				ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
				defer cancel()
				p, err := room.Look(ctx)
				if err != nil {
					return looked{err: err}
				}
				updates, err := room.Updates(ctx)
				return looked{p, updates, err}
			}
			first := look()
			if first.err != nil {
				return first.err
			}
			s := screen{look: look, rates: new(ops.Rates), every: every, by: "waiters", width: 120, height: 30}
			s.see(first)
			_, err := tea.NewProgram(s, tea.WithContext(cmd.Context()), tea.WithInput(a.in), tea.WithOutput(a.screen), tea.WithWindowSize(s.width, s.height)).Run()
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
	look  func() looked
	every time.Duration

	items         []item
	taken         time.Time
	summary       string
	gaps          []ops.Gap
	err           error
	by            string
	from          int
	width, height int
	rates         *ops.Rates
	left          int // how far the columns behind the key are scrolled
}

// item is a line: a lock or a lease.
type item struct {
	key, kind, holder, does string
	waiters                 ops.Count
	age                     ops.Seconds
	rate                    ops.Rate
}

// see takes over a picture.
func (s *screen) see(found looked) {
	p := found.Picture
	rates, _, _ := s.rates.See(p, found.updates)
	s.items = nil
	for _, l := range p.Locks {
		session := p.Sessions[l.Session]
		holder := strings.TrimSpace(fmt.Sprintf("%s %s %s", ops.Number(l.Session), session.Who(), l.Owner))
		s.items = append(s.items, item{key: l.String(), kind: l.How(), holder: holder, does: session.Doing(), waiters: l.Waiters, age: l.Held, rate: rates[l.Row]})
	}
	for _, l := range p.Leases {
		if l.Kind != "waiter" {
			s.items = append(s.items, item{key: ops.Shown(l.Key), kind: "lease, " + l.Kind, holder: l.Owner + " " + l.Label, does: l.Until(), waiters: l.Waiters, age: l.Held, rate: rates[l.Row()]})
		}
	}
	s.taken, s.err = p.Taken, nil
	s.summary = fmt.Sprintf("%d locks%s, %d leases%s, %d waiting, %s %s", len(p.Locks), old(p.LocksAge), len(p.Leases), old(p.LeasesAge), len(p.Waits), rawsql.EngineOf(p.Version).Name, p.Version)
	s.gaps = p.Hiding()
	s.sort()
}

// old says how old a part is, if it is older than the picture.
func old(age ops.Seconds) string {
	if age < 1 {
		return ""
	}
	return " " + age.String() + " ago"
}

func (s *screen) sort() {
	slices.SortStableFunc(s.items, func(a, b item) int {
		switch s.by {
		case "waiters":
			return cmp.Or(-cmp.Compare(a.waiters, b.waiters), -cmp.Compare(a.age, b.age), strings.Compare(a.key, b.key))
		case "age":
			return cmp.Or(-cmp.Compare(a.age, b.age), strings.Compare(a.key, b.key))
		case "rate":
			return cmp.Or(-cmp.Compare(a.rate.PerSecond, b.rate.PerSecond), strings.Compare(a.key, b.key))
		}
		return strings.Compare(a.key, b.key)
	})
}

type looked struct {
	*ops.Picture
	updates float64 // of rows of locks by the server, and of others where it doesn't tell them apart; 0 if unknown
	err     error
}

func (s screen) again() tea.Cmd {
	return tea.Tick(s.every, func(time.Time) tea.Msg {
		return s.look()
	})
}

// Init schedules the next query.
func (s screen) Init() tea.Cmd { return s.again() }

// Update takes over a picture, or does what a key says.
func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case looked:
		if s.err = msg.err; s.err == nil {
			s.see(msg)
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
		case "right":
			s.left = min(s.left+8, 200)
		case "left":
			s.left = max(0, s.left-8)
		case "up", "pgup":
			s.from = max(0, s.from-map[bool]int{true: s.page(), false: 1}[msg.String() == "pgup"])
		}
	}
	return s, nil
}

func (i item) perSecond() string {
	text := fmt.Sprintf("%.1f", i.rate.PerSecond)
	if i.rate.Least {
		text = "≥" + text
	}
	return text
}

// page is how many lines are below the head.
func (s screen) page() int { return max(1, s.height-4-len(s.gaps)) }

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
	for _, g := range s.gaps {
		line("Not seen: " + cell(g.String()))
	}
	key, holder := min(30, max(12, s.width-63)), 36 // at 80 columns 16 are left for the holder
	for _, i := range s.items {
		holder = min(80, max(holder, len([]rune(cell(i.holder)))))
	}
	row := func(name, rest string) {
		line(fmt.Sprintf("%-*s ", key, clipped(name, key)) + string([]rune(rest)[min(s.left, len([]rune(rest))):]))
	}
	const format = "%7s %8s %7s  %-19s %-*s %s"
	row("KEY", fmt.Sprintf(format, "WAITERS", "HELD", "RATE/S", "KIND", holder, "HOLDER", "ACTIVITY"))
	for _, i := range s.items[min(s.from, len(s.items)):] {
		if strings.Count(b.String(), "\n") >= s.height-1 {
			break
		}
		row(cell(i.key), fmt.Sprintf(format, i.waiters, i.age, i.perSecond(), i.kind, holder, clipped(cell(i.holder), holder), cell(i.does)))
	}
	return b.String()
}
