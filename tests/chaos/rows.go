package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// sight is what the row of a lease says, read without the library at some moment between
// from and to.
type sight struct {
	from, to             int64
	key, owner, question string
	token                uint64
	slot                 int64
	held                 bool
}

// lookEvery is how often the rows are read.
const lookEvery = 50 * time.Millisecond

// look reads the rows of the leases that the sights are of until the context ends. What a
// server doesn't answer is left out.
func (s *site) look(ctx context.Context) {
	const limit = time.Second
	query := "SELECT name, slot, owner, token, CHAR_LENGTH(holders) > 0 AND expires_us > UNIX_TIMESTAMP(NOW(6)) * 1000000, IF(asked_us > 0, release_reason, '')" +
		" FROM lockstep_leases WHERE slot = 0 AND (name LIKE '" + ofAll + "%' OR name LIKE '" + ofKept + "%') OR name LIKE '" + ofAsked + "%'"
	for sleep(ctx, lookEvery) == nil {
		var found []sight
		limited, cancel := context.WithTimeout(ctx, limit)
		from := clock{}.now()
		err := eachRow(limited, s.admin, query, func(rows *sql.Rows) error {
			seen := sight{from: from}
			err := rows.Scan(&seen.key, &seen.slot, &seen.owner, &seen.token, &seen.held, &seen.question)
			found = append(found, seen)
			return err
		})
		cancel()
		if err != nil {
			continue
		}
		to := clock{}.now()
		for i := range found {
			found[i].to = to
		}
		s.seen = append(s.seen, found...)
	}
}

// looking lets all sites look until the returned function is called.
func (r *result) looking(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, s := range r.sites {
		all.Go(func() { s.look(ctx) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// released are the releases of holds, by the hold.
func released(history []*op) map[string]*op {
	ends := make(map[string]*op)
	for _, o := range history {
		if o.Kind == "release" && o.Of != "" {
			ends[o.Of] = o
		}
	}
	return ends
}

// slack is for how long a key may look held that isn't: while a session is hung that has
// its row locked, for example.
func slack(ttl time.Duration) int64 { return int64(3 * ttl) }

// tenure is when an operation may have had its keys, also where nobody was told so.
type tenure struct{ from, to int64 }

// tenures are when each of the keys that the rows are read of may have been held.
func tenures(history []*op, ends map[string]*op, ttl time.Duration) map[string][]tenure {
	valid := make(map[string]int64) // of the last part
	for _, o := range history {
		if o.Kind == "part" {
			valid[o.Of] = max(valid[o.Of], o.Valid)
		}
	}
	held := make(map[string][]tenure)
	for _, o := range history {
		if !acquires(o) || o.Outcome == failed && len(o.Keys) == 1 {
			continue
		}
		// What has reached the server too late is refused by it; a renewal that was not
		// answered may have come late.
		to := o.Call + int64(opLimit+2*ttl)
		if o.Outcome == failed {
			to = o.Return
		}
		if o.Outcome == succeeded {
			to = max(o.Return, o.Valid, valid[o.ID]) + int64(2*ttl)
			if end := ends[o.ID]; end != nil && end.Outcome == succeeded {
				to = end.Return
			} else if end != nil {
				to = max(to, end.Return+int64(2*ttl))
			}
			to = max(to, o.Return+o.AtLeast)
		}
		for _, key := range o.Keys {
			held[key] = append(held[key], tenure{o.Call, to})
		}
	}
	return held
}

// acquires tells whether an operation acquires keys that the rows are read of. A part is
// acquired by the operation that it is of.
func acquires(o *op) bool {
	return len(o.Keys) > 0 && slices.Contains(slices.Concat(allKeys, keptKeys, askedKeys), o.Keys[0]) &&
		!slices.Contains([]string{"part", "release", "renew", "re-enter", "ask", "guarded write", "guarded write of all"}, o.Kind)
}

// tries tells whether an operation acquires what is free, and waits for nothing.
func tries(o *op) bool { return strings.HasPrefix(o.Kind, "try ") }

// checkLeases checks what was kept, asked for and acquired together, by what clients were
// told and by what the rows have shown.
func (v *verdict) checkLeases(history []*op, seen []sight, ttl time.Duration) {
	ends := released(history)
	v.checkKept(history, ends)
	v.checkAsks(history, seen, ttl)
	v.checkRefused(history, ends, ttl)
	v.checkRows(history, ends, seen, ttl)
	v.checkDead(history, ends, seen, ttl)
	v.checkCircles(history, seen, ttl)
}

// checkRefused checks that who was told that a key is taken was told so while it was.
// That the server has not answered says nothing of the key.
func (v *verdict) checkRefused(history []*op, ends map[string]*op, ttl time.Duration) {
	held := tenures(history, ends, ttl)
	for _, o := range history {
		busy := o.Outcome == failed && strings.Contains(o.Err, txlock.ErrBusy.Error())
		lingers := v.lingers && strings.Contains(o.Err, "its row is locked")
		if !busy || lingers || !acquires(o) || !tries(o) { // who waits may be late
			continue
		}
		if !slices.ContainsFunc(o.Keys, func(key string) bool {
			return slices.ContainsFunc(held[key], func(t tenure) bool {
				return t.from < o.Return && t.to+slack(ttl)+int64(behind(v.leaps, t.from, o.Return)) > o.Call
			})
		}) {
			v.add(stuck, "%s: %s, a %q, was refused, and nobody has it: %s", o.Keys[0], o.ID, o.Kind, o.Err)
		}
	}
}

// checkRows checks that the rows don't show as a holder who has released the key, or has
// not got it.
func (v *verdict) checkRows(history []*op, ends map[string]*op, seen []sight, ttl time.Duration) {
	owners := make(map[string]*op)
	for _, o := range history {
		if o.Owner != "" {
			owners[o.Owner] = o
		}
	}
	told := make(map[string]bool)
	for _, s := range seen {
		o := owners[s.owner]
		if !s.held || o == nil || told[o.ID] {
			continue
		}
		until, why := int64(0), ""
		switch end := ends[o.ID]; {
		case o.Outcome == failed:
			until, why = o.Return+slack(ttl)+int64(behind(v.leaps, o.Call, s.from)), "was refused"
		case o.Outcome == unknown:
			until, why = o.Return+int64(opLimit)+slack(ttl)+int64(behind(v.leaps, o.Call, s.from)), "has failed"
		case end != nil && end.Outcome == succeeded:
			until, why = end.Return, "has released it"
		}
		if told[o.ID] = until > 0 && s.from > until; told[o.ID] {
			v.add(stuck, "%s: %s still has it %v after it %s", s.key, o.ID, time.Duration(s.from-until), why)
		}
	}
}

// checkCircles checks that operations don't wait for each other in a circle for longer than
// it takes to lose a lease.
func (v *verdict) checkCircles(history []*op, seen []sight, ttl time.Duration) {
	waits := make(map[string]*op)
	for _, o := range history {
		if o.Kind == waitsForAll {
			waits[o.ID] = o
		}
	}
	since, last := make(map[string]int64), ""
	for len(seen) > 0 {
		n := slices.IndexFunc(seen, func(s sight) bool { return s.from != seen[0].from })
		if n < 0 {
			n = len(seen)
		}
		var now []sight
		now, seen = seen[:n], seen[n:]
		circle := circleOf(now, waits)
		if circle != last {
			last, since = circle, map[string]int64{circle: now[0].from}
		}
		if took := now[0].from - since[circle]; circle != "" && took > int64(2*ttl) {
			v.add(stuck, "%s have waited for each other for %v", circle, time.Duration(took))
			since[circle] = now[0].from // tell it again after as long a time
		}
	}
}

// circleOf names the holders of a circle that the rows show at one moment, "" if there is
// none.
func circleOf(now []sight, waits map[string]*op) string {
	holder := make(map[string]sight)
	for _, s := range now {
		o := waits[s.owner]
		if s.held && o != nil && o.Call < s.from && (o.Return == 0 || o.Return > s.to) {
			holder[s.key] = s
		}
	}
	for _, key := range sortedKeys(holder) {
		if circle := closed([]sight{holder[key]}, holder, waits); circle != nil {
			text := key + ":"
			for _, s := range circle {
				text += fmt.Sprintf(" %s (token %d of %s)", s.owner, s.token, s.key)
			}
			return text
		}
	}
	return ""
}

// closed returns the circle that begins with this path, nil if none does.
func closed(path []sight, holder map[string]sight, waits map[string]*op) []sight {
	owner := path[len(path)-1].owner
	for _, key := range waits[owner].Keys {
		next, ok := holder[key]
		switch {
		case !ok || next.owner == owner:
		case next.owner == path[0].owner:
			return path
		case !slices.ContainsFunc(path, func(s sight) bool { return s.owner == next.owner }):
			if circle := closed(append(slices.Clone(path), next), holder, waits); circle != nil {
				return circle
			}
		}
	}
	return nil
}
