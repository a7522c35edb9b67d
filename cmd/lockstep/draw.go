package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/dca00107/lockstep/internal/ops"
)

// drawing writes the tree of waits.
type drawing struct {
	io.Writer
	*ops.Picture
}

func (d drawing) line(indent, text string) {
	_, _ = fmt.Fprintln(d, indent+cell(text))
}

func (d drawing) forest(roots []*ops.Node) {
	for i, n := range roots {
		if i > 0 {
			_, _ = fmt.Fprintln(d)
		}
		d.node(n, "", "")
	}
}

// node writes who holds a row, and who waits for it.
func (d drawing) node(n *ops.Node, first, rest string) {
	d.line(first, d.title(n))
	for _, l := range n.Leases {
		d.line(rest+"  ", l.Describe())
	}
	for _, id := range n.Holders {
		d.line(rest+"  ", "held by "+d.session(id))
	}
	for i, w := range n.Waiters {
		branch, below := "├─ ", "│  "
		if i == len(n.Waiters)-1 {
			branch, below = "└─ ", "   "
		}
		how := ""
		if w.Mode == ops.Shared {
			how = " (shared)"
		}
		d.line(rest+branch, "waits "+w.For.String()+how+": "+d.session(w.Session))
		for _, held := range w.Holds {
			d.node(held, rest+below+"└─ ", rest+below+"   ")
		}
	}
}

func (d drawing) title(n *ops.Node) string {
	var keys []string
	for _, l := range d.Locks {
		if l.Row == n.Row {
			keys = l.Keys
		}
	}
	title := nameOf(n.Row, keys)
	if notes := d.Notes(n); len(notes) > 0 {
		title += ": " + strings.Join(notes, "; ")
	}
	return title
}

// session describes a session in one line.
func (d drawing) session(id uint64) string {
	return d.Describe(id, func(s ops.Session) string { return clipped(s.Doing(), 100) })
}
