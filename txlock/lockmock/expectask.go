package lockmock

import (
	"context"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/sqlstore"
)

// ExpectAsk expects Manager.Ask.
func (l *Leases) ExpectAsk(key txlock.Key) *ExpectedAsk { return &ExpectedAsk{l, key} }

// ExpectedAsk is an Ask that is expected.
type ExpectedAsk struct {
	leases *Leases
	key    txlock.Key
}

// Succeeds asks one holder.
func (e *ExpectedAsk) Succeeds() { e.expect(play{holders: 1}, nil) }

// NotHeld says that nobody holds the lease: txlock.ErrNotHeld.
func (e *ExpectedAsk) NotHeld() { e.expect(play{}, txlock.ErrNotHeld) }

// Fails makes the statement fail with an error of the server.
func (e *ExpectedAsk) Fails(err *mysql.MySQLError) {
	final("Ask", err)
	e.expect(play{err: err}, err)
}

func (e *ExpectedAsk) expect(p play, want error) {
	e.leases.expect(naming("Ask", e.key), e.key, p, want, func() error {
		return e.leases.manager.Ask(context.Background(), e.key, "")
	})
}

// ExpectedRenew is a Renew that is expected.
type ExpectedRenew struct{ ExpectedHeld }

// Asked says that somebody has asked for the lease meanwhile: Revoked is closed, and Asked
// returns the reason.
func (e *ExpectedRenew) Asked(reason string) {
	held := e.leases.last(e.key, e.what)
	e.expect(play{reply: int64(held.Token()) + sqlstore.SharedBit, why: reason}, nil)
}
