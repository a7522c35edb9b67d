package tests

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock/lease"
)

// renaming is what names that are made at random are called on the other side.
type renaming struct{ to, from map[string]string }

// agrees tells whether two names may be the same.
func (r renaming) agrees(kind, here, there string) bool {
	here, there = kind+" "+here, kind+" "+there
	to, known := r.to[here]
	if from, taken := r.from[there]; known || taken {
		return to == there && from == here
	}
	return true
}

// same is agrees that remembers.
func (r renaming) same(kind, here, there string) bool {
	if !r.agrees(kind, here, there) {
		return false
	}
	here, there = kind+" "+here, kind+" "+there
	r.to[here], r.from[there] = there, here
	return true
}

// rowPair is a row of the server, and one in memory that may be the same.
type rowPair struct {
	at          [2]store.Row
	said        [2]memstore.Contents
	here, there []string // the holds
}

// each calls with all names that were made at random.
func (p rowPair) each(call func(kind, here, there string) bool) bool {
	for i := range p.here {
		if !call("hold", p.here[i], p.there[i]) {
			return false
		}
	}
	return call("owner", p.said[0].Owner, p.said[1].Owner) &&
		call("slot of "+p.at[0].Key, fmt.Sprint(p.at[0].Slot), fmt.Sprint(p.at[1].Slot))
}

// sameRow tells whether a row of the server is one of those in memory, which it returns.
func (p *play) sameRow(at store.Row, row memstore.Contents, left map[store.Row]memstore.Contents) (store.Row, bool) {
	candidates := []store.Row{at}
	if at.Slot > store.MaxPermits { // a reader's, which is any
		candidates = slices.Collect(maps.Keys(left))
	}
	for _, where := range candidates {
		other, there := left[where]
		if !there || where.Key != at.Key || where.Slot != at.Slot && where.Slot <= store.MaxPermits {
			continue
		}
		pair := rowPair{
			at: [2]store.Row{at, where}, said: [2]memstore.Contents{row, other},
			here: holdsOf(row.Holders), there: holdsOf(other.Holders),
		}
		row, other := plainly(row), plainly(other)
		if row == other && len(pair.here) == len(pair.there) && pair.each(p.names.agrees) {
			return where, pair.each(p.names.same)
		}
	}
	return store.Row{}, false
}

// plainly is a row without names, and without the number of the session.
func plainly(row memstore.Contents) memstore.Contents {
	row.Owner, row.Holders = "", ""
	row.Session = min(row.Session, 1)
	return row
}

// holdLength is the length of a hold in the list.
const holdLength = 23

func holdsOf(list string) (all []string) {
	for i := 0; i < len(list); i += holdLength {
		all = append(all, list[i:min(i+holdLength, len(list))])
	}
	return all
}

// compareRows compares the tables.
func (p *play) compareRows() error {
	rows, err := p.admin.QueryContext(context.Background(),
		"SELECT name, slot, IF(slot < 0, RTRIM(owner), owner), holders, token, ttl_us, expires_us, guards, used_for, conn_id, IF(slot < 0, RTRIM(label), label), asked_us, release_reason FROM lockstep_leases WHERE name <> ?", neighbour)
	if err != nil {
		return err
	}
	defer rows.Close()
	left, _ := p.memory.Rows()
	tokens := make(map[store.Row]uint64)
	for rows.Next() {
		var at store.Row
		var row memstore.Contents
		if err := rows.Scan(&at.Key, &at.Slot, &row.Owner, &row.Holders, &row.Token, &row.TTL, &row.Expires, &row.Guards, &row.Use, &row.Session, &row.Label, &row.Asked, &row.Reason); err != nil {
			return err
		}
		tokens[at] = row.Token
		if row.Token < p.tokens[at] {
			return fmt.Errorf("the token of %v is %d after %d", at, row.Token, p.tokens[at])
		}
		where, same := p.sameRow(at, row, left)
		if !same {
			return fmt.Errorf("at %d the server has the row %+v\n%+v\nthe memory has:\n%s", p.clock.Load(), at, row, rowsOf(left))
		}
		delete(left, where)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("at %d the memory has rows that the server doesn't have:\n%s", p.clock.Load(), rowsOf(left))
	}
	p.tokens = tokens
	return nil
}

func rowsOf(rows map[store.Row]memstore.Contents) string {
	var b strings.Builder
	for at, row := range rows {
		fmt.Fprintf(&b, "%+v: %+v\n", at, row)
	}
	return b.String()
}

// compareInfos compares what List and Inspect tell of who holds what, and who waits.
func (p *play) compareInfos() error {
	var told [2][]string
	for i, s := range p.sides {
		all, err := s.managers[0].List(context.Background())
		if err != nil {
			return err
		}
		for key := range p.keys {
			one, err := s.managers[1].Inspect(context.Background(), playKey(key))
			if err != nil {
				return err
			}
			others := one.Others
			one.Others = nil
			all = slices.Concat(all, []lease.Info{one}, others)
		}
		for _, info := range all {
			told[i] = append(told[i], p.told(info))
		}
		slices.Sort(told[i])
	}
	if !slices.Equal(told[0], told[1]) {
		return fmt.Errorf("List and Inspect say\n%s\non the server, and in memory\n%s", strings.Join(told[0], "\n"), strings.Join(told[1], "\n"))
	}
	return nil
}

// told is what is told of a lease, with the name of its owner in memory, and without what
// is made at random.
func (p *play) told(info lease.Info) string {
	if there, known := p.names.to["owner "+info.Owner]; known {
		info.Owner = strings.TrimPrefix(there, "owner ")
	}
	if info.Kind == lease.Reader {
		info.Slot = 0
	}
	if info.Kind == lease.Waiter {
		info.Session, info.Since = 0, time.Time{}
		if info.Owner != "ann" && info.Owner != "bob" {
			info.Owner = "" // whoever it is
		}
	}
	return fmt.Sprintf("%+v", info)
}

// use is what a key is used for by its row in memory, 0 where that is missing.
func (p *play) use(key int) int64 {
	rows, _ := p.memory.Rows()
	return int64(rows[entryOf(key)].Use)
}

func entryOf(key int) store.Row {
	return store.Row{Key: playKey(key).String(), Slot: store.LeaseSlot}
}

// locked tells whether the open transaction has locked a row of a key, of an owner if that
// is not "".
func (p *play) locked(key int, owner string) bool {
	_, rows := p.memory.Rows()
	return has(rows, key, owner)
}

// has tells whether one of these rows is of a key, and of an owner if that is not "".
func has(rows map[store.Row]memstore.Contents, key int, owner string) bool {
	for at, row := range rows {
		if at.Key == playKey(key).String() && at.Slot >= store.LeaseSlot && (owner == "" || row.Owner == owner) {
			return true
		}
	}
	return false
}

// lockedFor tells whether it may have locked the row of a handle: any row of the key where
// the handle's owner has none, since it is somebody else's by now.
func (p *play) lockedFor(h *handle) bool {
	owner := h.leases[1].Owner()
	if rows, _ := p.memory.Rows(); !has(rows, h.key, owner) {
		owner = ""
	}
	return p.locked(h.key, owner) || !h.leases[1].Shared() && p.entryLocked(h.key)
}

func (p *play) entryLocked(key int) bool {
	_, rows := p.memory.Rows()
	_, locked := rows[entryOf(key)]
	return locked
}

// grace is for how many microseconds a transaction may have a row whose time is over.
const grace = 5e6

// outlives tells whether the open transaction has locked a row whose time will have been
// over for so long at a moment that whoever wants it ends the transaction.
func (p *play) outlives(moment int64) bool {
	_, rows := p.memory.Rows()
	for at, row := range rows {
		if at.Slot >= store.LeaseSlot && row.Holders != "" && row.Expires+grace-1e6 <= moment { // the clock is one of whole seconds
			return true
		}
	}
	return false
}
