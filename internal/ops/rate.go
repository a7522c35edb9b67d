package ops

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Rate is how often a row is granted.
type Rate struct {
	PerSecond float64
	Least     bool // there may have been more grants, between two looks
}

// Rates reads from pictures, taken one after the other, how often rows are granted.
type Rates struct {
	paces   map[Row]pace
	taken   time.Time
	updates float64
}

// See takes over a picture and what Updates has returned, and returns the rates of the rows that are
// held, and of all locks of transactions together. A row that is free at each look has no rate.
//
// Keys that are granted in bursts look as if the burst went on. So where the server has updated
// fewer rows than the rates of locks add up to, they are lowered. Most is how many rows it has updated
// per second, or 0 if that isn't known.
func (r *Rates) See(p *Picture, updates float64) (of map[Row]Rate, all Rate, most float64) {
	paces := make(map[Row]pace)
	of = make(map[Row]Rate)
	see := func(row Row, token, before uint64) {
		if _, again := paces[row]; token == 0 || again { // two sessions may share a lock
			return
		}
		g := r.paces[row].next(token, before)
		paces[row], of[row] = g, Rate{g.rate(p.Taken), g.least && g.n > 0}
	}
	for _, l := range p.Locks {
		see(l.Row, l.Token, l.Before)
	}
	for _, rate := range of {
		all.PerSecond, all.Least = all.PerSecond+rate.PerSecond, all.Least || rate.Least
	}
	if r.updates > 0 && updates >= r.updates { // else the counter isn't known, or has begun at 0 again
		most = (updates - r.updates) / p.Taken.Sub(r.taken).Seconds()
		if all.PerSecond > most {
			for row, rate := range of {
				rate.PerSecond *= most / all.PerSecond
				of[row] = rate
			}
			all.PerSecond = most
		}
	}
	for _, l := range p.Leases {
		if l.Kind != waiter {
			see(l.Row(), l.Token, 0)
		}
	}
	r.paces, r.taken, r.updates = paces, p.Taken, updates
	return of, all, most
}

// Row returns the row of the lease.
func (l Lease) Row() Row { return Row{Kind: LeaseRow, Key: l.Key, Slot: l.Slot} }

// pace is what the tokens of a row have told of how often it was granted.
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

// Updates returns how many rows of locks the server has updated since its start, by which grants
// can't be more, or 0 if it doesn't tell. MariaDB counts those of all tables.
func (r *Room) Updates(ctx context.Context) (n float64, err error) {
	query := `SELECT COALESCE(SUM(count_update), 0) FROM performance_schema.table_io_waits_summary_by_table
		WHERE object_type = 'TABLE' AND object_schema = DATABASE() AND object_name IN ('lockstep_locks', 'lockstep_centers')`
	if r.maria {
		query = "SELECT CAST(variable_value AS DOUBLE) FROM information_schema.GLOBAL_STATUS WHERE variable_name = 'HANDLER_UPDATE'"
	}
	err = r.db.QueryRowContext(ctx, query).Scan(&n)
	if denied(err) || errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, err
}
