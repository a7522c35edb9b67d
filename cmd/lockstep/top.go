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
			s := screen{look: look, every: every, by: "waiters", width: 120, height: 30}
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
	err           error
	by            string
	from          int
	width, height int
	paces         map[string]pace
	updates       float64
}

// item is a line: a lock or a lease.
type item struct {
	key, kind, holder, does string
	waiters                 int
	age                     ops.Seconds
	rate                    float64 // grants per second
	least                   bool    // at least
}

// pace is what the tokens of a key have told of how often it was granted.
type pace struct {
	token uint64
	n     float64 // the intervals between two grants that were seen, the older ones for less
	took  float64 // all of them, in seconds
	least bool    // there may have been grants between the two
}

// next takes over a token, and that of the grant before, if it is known. Tokens are the time of
// the grant, in microseconds.
func (g pace) next(token, before uint64) pace {
	if token == g.token {
		return g
	}
	g.least = before == 0
	if g.least {
		before = g.token
	}
	if g.token = token; before > 0 && before < token {
		g.n, g.took = 1+g.n*0.9, float64(token-before)/1e6+g.took*0.9
	}
	return g
}

// rate returns the grants per second. The time since the last one counts, so that it falls where
// nothing is granted any more.
func (g pace) rate(now time.Time) float64 {
	if g.n == 0 {
		return 0
	}
	return g.n / (g.took + max(0, now.Sub(time.UnixMicro(int64(g.token))).Seconds()))
}

// see takes over a picture.
func (s *screen) see(found looked) {
	p, all := found.Picture, make(map[string]pace)
	add := func(key string, token, before uint64, i item) {
		g, known := all[key] // two sessions may share a lock
		if !known {
			g = s.paces[key].next(token, before)
		}
		all[key], i.rate, i.least = g, g.rate(p.Taken), g.least && g.n > 0
		s.items = append(s.items, i)
	}
	s.items = nil
	for _, l := range p.Locks {
		session := p.Sessions[l.Session]
		holder := strings.TrimSpace(fmt.Sprintf("%s %s %s", ops.Number(l.Session), session.Who(), l.Owner))
		add(l.String(), l.Token, l.Before, item{key: l.String(), kind: l.How(), holder: holder, does: session.Doing(), waiters: l.Waiters, age: l.Held})
	}
	s.limit(p.Taken, found.updates)
	for _, l := range p.Leases {
		if l.Kind != "waiter" {
			does := fmt.Sprintf("%s left, renewed %s ago", l.Left, l.Renewed)
			add(fmt.Sprint("lease ", l.Key, l.Slot), l.Token, 0, item{key: l.Key, kind: "lease, " + l.Kind, holder: l.Owner + " " + l.Note, does: does, waiters: l.Waiters, age: l.Held})
		}
	}
	s.paces, s.taken, s.updates, s.err = all, p.Taken, found.updates, nil
	s.summary = fmt.Sprintf("%d locks, %d leases, %d waiting, MariaDB or MySQL %s", len(p.Locks), len(p.Leases), len(p.Waits), p.Version)
	s.sort()
}

// limit lowers the rates of locks where the server has updated fewer rows than they would be: keys
// that are granted in bursts look as if it went on.
func (s *screen) limit(now time.Time, updates float64) {
	sum, most := 0.0, (updates-s.updates)/now.Sub(s.taken).Seconds()
	for _, i := range s.items {
		sum += i.rate
	}
	if s.updates == 0 || updates < s.updates || sum <= most {
		return // the counter isn't known, or has begun anew
	}
	for i := range s.items {
		s.items[i].rate *= most / sum
	}
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
	updates float64 // of rows of locks by the server, and of others where it doesn't tell them apart; 0 if unknown
	err     error
}

func (s screen) again() tea.Cmd {
	return tea.Tick(s.every, func(time.Time) tea.Msg {
		return s.look()
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
		case "up", "pgup":
			s.from = max(0, s.from-map[bool]int{true: s.page(), false: 1}[msg.String() == "pgup"])
		}
	}
	return s, nil
}

func (i item) perSecond() string {
	text := fmt.Sprintf("%.1f", i.rate)
	if i.least {
		text = "≥" + text
	}
	return text
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
	line(fmt.Sprintf(format, "KEY", "WAITERS", "HELD", "RATE/S", "KIND", "HOLDER", "ACTIVITY"))
	for _, i := range s.items[min(s.from, len(s.items)):] {
		if strings.Count(b.String(), "\n") >= s.height-1 {
			break
		}
		line(fmt.Sprintf(format, clipped(cell(i.key), 30), number(i.waiters), i.age, i.perSecond(), i.kind, clipped(cell(i.holder), 36), cell(i.does)))
	}
	return b.String()
}
