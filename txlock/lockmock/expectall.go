package lockmock

import (
	"context"
	"fmt"
	"slices"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/sqlstore"
	"github.com/dca00107/lockstep/txlock/lease"
)

// ExpectAcquireAll expects AcquireAll or TryAcquireAll, with the options that ExpectAcquire
// knows. Guard and Release of what is acquired are those of each lease, in the order of the
// names of their keys: expect them one by one.
func (l *Leases) ExpectAcquireAll(keys []txlock.Key, options ...lease.AcquireOption) *ExpectedAcquireAll {
	return &ExpectedAcquireAll{l, keys, append(slices.Clip(options), lease.TTL(lease.MaxTTL)), naming("AcquireAll", keys...)}
}

// ExpectedAcquireAll are leases that are asked for together.
type ExpectedAcquireAll struct {
	leases  *Leases
	keys    []txlock.Key
	options []lease.AcquireOption
	what    string
}

// Granted gives all leases, with a token for each key as ExpectedAcquire.Granted does.
func (e *ExpectedAcquireAll) Granted(tokens ...uint64) {
	if len(tokens) != len(e.keys) {
		panic(fmt.Sprintf("lockmock: %s is granted %d tokens: it takes one for each of its %d keys", e.what, len(tokens), len(e.keys)))
	}
	p := play{look: free, replies: make(map[string]int64)}
	for i, key := range e.keys {
		checkToken(e.what, tokens[i])
		p.replies[key.String()] = int64(tokens[i])
	}
	e.expect(p, nil)
}

// Busy refuses the lease of one of the keys, which somebody else holds: TryAcquireAll
// returns txlock.ErrBusy, and releases those that it has acquired before.
func (e *ExpectedAcquireAll) Busy(key txlock.Key) {
	p := calm
	p.replies = map[string]int64{key.String(): sqlstore.ReplyRefused}
	e.expect(p, txlock.ErrBusy)
}

func (e *ExpectedAcquireAll) expect(p play, want error) {
	e.leases.expectOf(e.what, e.keys, p, want, func() error {
		all, err := e.leases.manager.TryAcquireAll(context.Background(), e.keys, e.options...)
		if err != nil {
			return err
		}
		for _, l := range all.All() {
			e.leases.held[l.Key().String()] = append(e.leases.held[l.Key().String()], l)
		}
		return nil
	})
}
