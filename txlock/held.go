package txlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/holderlookup"
)

// A HeldError names the holder of a key. errors.As finds it in an ErrBusy, in an ErrWaitTimeout,
// and in the error of a context that has ended a wait for a lease, if the holder is known: see
// NameHolders and lease.NameHolders. If there are several holders it names one of them.
type HeldError struct {
	Key     Key       // what was requested
	Owner   string    // of a lease; see lease.WithOwner
	Label   string    // of WithLabel or lease.WithLabel; empty if only the session is known
	Session uint64    // CONNECTION_ID() of the holder's transaction, for KILL; 0 for a lease
	Since   time.Time // when it was granted, by the server's clock; zero if that isn't known
	Here    bool      // the transaction is one of this program
}

// Error returns for example `owner "web-3/4711" had it since 2026-05-04T03:02:01.000Z in
// session 42`.
func (e *HeldError) Error() string {
	name := cmp.Or(e.Owner, e.Label)
	if name == "" && e.Here {
		return fmt.Sprintf("an open transaction of this program, in session %d, has it", e.Session)
	}
	if name == "" {
		return fmt.Sprintf("an open transaction of session %d has its row locked", e.Session)
	}
	text := fmt.Sprintf("owner %q", name)
	if e.Owner != "" && e.Label != "" {
		label := strconv.Quote(e.Label) // without line breaks, which would look like lines of a log
		text += " (" + label[1:len(label)-1] + ")"
	}
	text += " had it"
	if !e.Since.IsZero() {
		text += " since " + e.Since.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	}
	if e.Session > 0 {
		text += fmt.Sprintf(" in session %d", e.Session)
	}
	if e.Here {
		text += ", of this program"
	}
	return text
}

// NameHolders makes ErrBusy and ErrWaitTimeout of transaction locks name the holder, in their text
// and by a *HeldError. It is an option of pools and, on an unguarded pool, of Join, like Observe.
// For leases use lease.NameHolders.
//
// After the refusal, Holders queries the given pool for the holder, never the transaction, which
// stays as it is. The query takes at most 100 ms, ends with the caller's context, needs no
// privilege but SELECT on the tables of locks, and isn't made if the pool has no free connection.
// It takes about five round trips, which a program that tries in a loop pays for with each refusal.
// So give it a pool of its own with SetMaxOpenConns(1): then there is one query at a time, also
// while all connections of the program's pool wait. Calls that request the same keys on the same
// pool at the same time share a query.
//
// If it fails or finds no holder, the error is the same as without it. It finds no shared holders,
// none on another node of a cluster, none that ended before the query, and none for the first call
// of a key of Once. LockAny and LockAll name the key and the holder of one, which need not be the
// one that LockAll has waited for; LockAny does so in its own error and not to the Observer. If
// the context ended the wait, no query is made. The default, and that of a nil pool, is not to
// query.
func NameHolders(pool *sql.DB) Option {
	return naming{pool}
}

type naming struct{ looks *sql.DB }

func (n naming) toPool(p *pooled) { p.looks = n.looks }

func (n naming) toJoin(s *state) { s.looks = n.looks }

// SlowWait reports to the Observer which holder a call has waited for, if that took at least d: as
// Event.Held, which SlogObserver also logs. When a wait has lasted that long, Holders makes one
// query on the pool of NameHolders, which must be set: never in the transaction, and within the
// limits of NameHolders. The query ends with the wait at the latest, so a wait that ends at that
// moment names no holder. SlowWait is an option of pools and of Join, like NameHolders; for leases
// use lease.SlowWait. The default, also if d is not positive, is not to query, which costs nothing.
func SlowWait(d time.Duration) Option {
	return slowWait(d)
}

type slowWait time.Duration

func (d slowWait) toPool(p *pooled) { p.slow = time.Duration(d) }

func (d slowWait) toJoin(s *state) { s.slow = time.Duration(d) }

// slowly begins a wait for keys, at whose end the observer may be told for whom it was.
func (s *state) slowly(ctx context.Context, waits bool, keys ...Key) *holderlookup.Later[[]*HeldError] {
	if !waits || s.watch == nil || s.looks == nil || s.slow <= 0 {
		return nil
	}
	wanted := unmarked(keys)
	return holderlookup.After(ctx, s.slow, func(ctx context.Context) []*HeldError { return s.holders(ctx, wanted) })
}

// named adds to the error of a refusal who holds one of the keys, if it is a transaction of
// this program or NameHolders asks for it.
func (s *state) named(ctx context.Context, err error, keys ...Key) error {
	if !errors.Is(err, ErrBusy) && !errors.Is(err, ErrWaitTimeout) {
		return err
	}
	var held []*HeldError
	if s.looks != nil {
		held = s.holders(ctx, unmarked(keys))
	}
	for _, key := range keys {
		for _, other := range s.inTheWay(key, false) {
			if len(held) == 0 {
				held = append(held, other.holds(key))
			}
			held[0].Here = held[0].Here || held[0].Session == other.server.Session
		}
	}
	switch {
	case len(held) == 0:
		return err // without a name, but with what was answered
	case len(keys) > 1:
		return fmt.Errorf("%w: of %q %w", err, held[0].Key, held[0])
	}
	return fmt.Errorf("%w: %w", err, held[0])
}

// sharedLooks are the looks under way, of all pools of the process.
var sharedLooks holderlookup.Shared[looked, []Holder]

// looked is what a look is for.
type looked struct {
	pool *sql.DB
	keys string
}

// holders looks which other transactions hold keys, together with others who look for the
// same. It finds nobody if it can't look at once.
func (s *state) holders(ctx context.Context, keys []Key) (held []*HeldError) {
	var all strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&all, "%t %t %q ", key.hashed, key.shared, key.name)
	}
	for _, h := range sharedLooks.Now(ctx, looked{s.looks, all.String()}, s.lookFor(keys)) {
		if h.Session != s.server.Session { // a LockAll may have taken some
			held = append(held, &HeldError{Key: h.Key, Label: h.Label, Session: h.Session, Since: h.Locked})
		}
	}
	return held
}

func (s *state) lookFor(keys []Key) func(ctx context.Context) []Holder {
	looks := s.looks
	return func(ctx context.Context) []Holder {
		if pool := looks.Stats(); pool.MaxOpenConnections > 0 && pool.InUse >= pool.MaxOpenConnections {
			return nil
		}
		holders, err := Holders(ctx, looks, keys...)
		if err != nil {
			return nil
		}
		return holders
	}
}
