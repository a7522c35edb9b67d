package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

// target is what a request asks for: the lease, a reader's place, or a permit.
type target interface {
	// send asks for it once. The reply is a token, with the slot that it is of, or
	// one of the replies.
	send(ctx context.Context, db gen.DBTX, q *request, notAfterUS int64) (reply int64, slot int64, err error)
	// look tells by plain reads whether it is to be had.
	look(ctx context.Context, db gen.DBTX, q *request) (glance, error)
	// prepare makes the rows that look has missed.
	prepare(ctx context.Context, db gen.DBTX, q *request) error
}

// glance is what a look shows.
type glance struct {
	exists bool          // the rows are there
	owner  string        // who holds the lease
	left   time.Duration // for how much longer it isn't to be had, 0 if it is
	ttl    time.Duration // what it was acquired with
	intent int64         // what the key is used for
}

// held tells whether it is held, and not only by a clock set back.
func (g glance) held() bool { return g.left > 0 && g.left <= g.ttl }

// lookAt reads one row without a lock.
func lookAt(ctx context.Context, db gen.DBTX, key txlock.Key, slot int64) (glance, error) {
	row, err := queries.LookLease(ctx, db, gen.LookLeaseParams{Name: []byte(key.String()), Slot: slot})
	if errors.Is(err, sql.ErrNoRows) {
		return glance{}, nil
	}
	return glance{exists: err == nil, owner: string(row.Owner), left: micros(row.LeftUs), ttl: micros(row.TtlUs), intent: row.IntentUs}, err
}

// ensure makes a row, free. For one that somebody has locked, or is making, it
// returns errLocked.
func ensure(ctx context.Context, db gen.DBTX, key txlock.Key, slot int64) error {
	err := queries.EnsureLease(ctx, db, gen.EnsureLeaseParams{Name: []byte(key.String()), Slot: slot})
	explained := txlock.Explain("", err)
	if errors.Is(explained, txlock.ErrWaitTimeout) || errors.Is(explained, txlock.ErrBusy) {
		return errLocked
	}
	return err
}

// exclusive is the lease itself.
type exclusive struct{}

func (exclusive) send(ctx context.Context, db gen.DBTX, q *request, notAfterUS int64) (int64, int64, error) {
	reply, err := queries.AcquireLease(ctx, db, gen.AcquireLeaseParams{
		Owner: []byte(q.owner), Hold: q.hold, TtlUs: q.ttl.Microseconds(),
		Name: []byte(q.key.String()), Slot: leaseSlot, NotAfterUs: notAfterUS,
	})
	return reply, leaseSlot, err
}

func (exclusive) look(ctx context.Context, db gen.DBTX, q *request) (glance, error) {
	return lookAt(ctx, db, q.key, leaseSlot)
}

func (exclusive) prepare(ctx context.Context, db gen.DBTX, q *request) error {
	return ensure(ctx, db, q.key, leaseSlot)
}

// reader is a place among the readers.
type reader struct {
	slot  int64
	clock *serverClock
}

func (t reader) send(ctx context.Context, db gen.DBTX, q *request, notAfterUS int64) (int64, int64, error) {
	reply, err := queries.ShareLease(ctx, rewriting{db, func(query string) string {
		return rawsql.SkipShared(query, t.clock.onMariaDB())
	}}, gen.ShareLeaseParams{
		Slot: t.slot, Owner: []byte(q.owner), Hold: q.hold, TtlUs: q.ttl.Microseconds(),
		Name: []byte(q.key.String()), NotAfterUs: notAfterUS,
	})
	return reply, t.slot, err
}

func (reader) look(ctx context.Context, db gen.DBTX, q *request) (glance, error) {
	seen, err := lookAt(ctx, db, q.key, leaseSlot)
	if seen.intent < 0 {
		return seen, otherUse(q.key, intentShared, seen.intent)
	}
	seen.exists = seen.intent == intentShared
	return seen, err
}

func (reader) prepare(ctx context.Context, db gen.DBTX, q *request) error {
	return markGate(ctx, db, q.key, intentShared)
}

// What a key is used for; a semaphore of n permits is -n.
const intentShared = 1

// errLocked is returned for a row that is locked at the moment, or missing.
var errLocked = fmt.Errorf("%w: its row is locked", txlock.ErrBusy)

// markGate says what a key is used for, unless it was said before.
func markGate(ctx context.Context, db gen.DBTX, key txlock.Key, intent int64) error {
	if err := ensure(ctx, db, key, leaseSlot); err != nil {
		return err
	}
	reply, err := queries.MarkGate(ctx, db, gen.MarkGateParams{Intent: intent, Name: []byte(key.String())})
	switch {
	case err != nil:
		return err
	case reply == replyAbsent:
		return errLocked
	case reply != usedFor+intent:
		return otherUse(key, intent, reply-usedFor)
	}
	return nil
}

// otherUse is the error for a key that is used for something else than what is asked.
func otherUse(key txlock.Key, asked, found int64) error {
	switch {
	case found >= 0:
		return fmt.Errorf("%w: %q is used for a shared lease: use another key", txlock.ErrInvalidKey, key)
	case asked >= 0:
		return fmt.Errorf("%w: %q is used for a semaphore of %d permits: use another key", txlock.ErrInvalidKey, key, -found)
	}
	return fmt.Errorf("%w: the semaphore %q has %d permits, not %d: use Resize to change that", txlock.ErrInvalidOption, key, -found, -asked)
}

// rewriting changes the text of statements on their way.
type rewriting struct {
	gen.DBTX
	rewrite func(query string) string
}

func (r rewriting) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return r.DBTX.ExecContext(ctx, r.rewrite(query), args...)
}

// ensureAlone is ensure in autocommit, where two that make the same row, or rows side
// by side, may lock each other out for a moment, or be each other's deadlock.
func (m *Manager) ensureAlone(ctx context.Context, key txlock.Key, slot int64) error {
	for tries := 1; ; tries++ {
		err := ensure(ctx, m.db, key, slot)
		if tries > maxMakes || !errors.Is(err, errLocked) && !conflicted(err) {
			return err
		}
		if seen, err := lookAt(ctx, m.db, key, slot); err != nil || seen.exists {
			return err
		}
		if err := m.sleep(ctx, time.Duration(tries)*leastLook); err != nil {
			return err
		}
	}
}
