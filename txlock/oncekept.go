package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// AnswerOnce stores the result of a key in the transaction that was the first to request it.
func (internals) AnswerOnce(ctx context.Context, s *Scope, key Key, result []byte) error {
	const verb = "store the result of"
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.mayTake(ctx); err != nil {
		return s.failure(verb, key, err)
	}
	var db gen.DBTX = s.tx
	if len(result) > smallPacket {
		db = &rawsql.Text{DBTX: s.tx.DBTX} // as a literal it would be twice as long
		var most int64
		if err := s.tx.QueryRowContext(s.own(ctx, guard.Call{}), rawsql.MaxPacket).Scan(&most); err != nil {
			return s.failure(verb, key, err)
		}
		if int64(len(result)) > most-smallPacket {
			return fmt.Errorf("%s %q: %w: it has %d bytes, and the server takes packets of %d (max_allowed_packet)", verb, fault.Clipped(key.name), ErrResult, len(result), most)
		}
	}
	answer := gen.AnswerOnceParams{Result: result, Name: []byte(key.name)}
	stored, err := fault.Changed("AnswerOnce")(queries.AnswerOnce(s.own(ctx, guard.Call{}), db, answer))
	if errors.Is(err, mysql.ErrPktTooLarge) { // nothing was sent: prepared it has no limit of the driver's
		stored, err = fault.Changed("AnswerOnce")(queries.AnswerOnce(s.own(ctx, guard.Call{}), &rawsql.Text{DBTX: s.tx.DBTX}, answer))
	}
	if errors.Is(err, mysql.ErrPktTooLarge) {
		return fmt.Errorf("%s %q: %w: it has %d bytes, more than maxAllowedPacket of the data source name: %w", verb, fault.Clipped(key.name), ErrResult, len(result), err)
	}
	if err == nil && !stored {
		err = fmt.Errorf("%w: a ROLLBACK TO SAVEPOINT to before Once has undone it", ErrNotHeld)
	}
	if err != nil {
		return s.failure(verb, key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.onces, key.name)
	return nil
}

// smallPacket is the size of a result that every server takes.
const smallPacket = 1 << 18

// ResultOfOnce reads the result of a key in a transaction that has requested it and isn't the
// first. It returns nil if the first has stored none.
func (internals) ResultOfOnce(ctx context.Context, s *Scope, key Key) ([]byte, error) {
	const verb = "read the result of"
	s.sending.Lock()
	defer s.sending.Unlock()
	result, err := queries.OnceResult(s.own(ctx, guard.Call{}), s.regardless(true, nil), []byte(key.name))
	if err == nil && result == nil {
		err = fault.UnknownReply("OnceResult", "NULL")
	}
	if err != nil {
		return nil, s.failure(verb, key, fault.Read("OnceResult", err))
	}
	if string(result) == noFingerprint {
		return nil, nil
	}
	return result, nil
}

// finishOnces prepares the COMMIT. It lets the time of the keys begin anew of which a half
// is over, so that none of them expires while its transaction is open. And what the
// transaction was told of other keys must not be lost with the server afterwards.
func (s *state) finishOnces(ctx context.Context) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	onces := maps.Clone(s.onces)
	s.mu.Unlock()
	if s.told && len(onces) == 0 && !s.server.SafeReads {
		if err := queries.SealOnce(s.own(ctx, guard.Call{}), s.regardless(true, nil)); err != nil {
			return s.failed("seal the answer of once", err)
		}
		s.told = false
	}
	for name, once := range onces {
		now := time.Now()
		if now.Sub(once.since) < once.keep/2 {
			continue
		}
		if _, err := fault.Again(func() (bool, error) { // nothing changes where a savepoint has undone the row
			return fault.Changed("ProlongOnce")(queries.ProlongOnce(s.own(ctx, guard.Call{}), s.tx, []byte(name)))
		}); err != nil {
			return s.failure("keep", Key{name: name}, err)
		}
		s.first(name, keptOnce{keep: once.keep, since: now})
	}
	return nil
}

// first notes that the transaction is the first of a key.
func (s *state) first(name string, kept keptOnce) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onces == nil {
		s.onces = make(map[string]keptOnce, 1)
	}
	s.onces[name] = kept
}

// PurgeOnce deletes expired keys of Once, by the server's clock, and returns their number. It
// skips keys that a running Once call has locked. It keeps the table small and has no other
// effect: call it from time to time in one process, for example every hour. It reads the whole
// table in small transactions of its own and doesn't wait for locks; if it fails, what it has
// deleted stays deleted.
//
// It returns ErrSchema, ErrReadOnly, ErrDeadlock and the errors of the driver.
func PurgeOnce(ctx context.Context, db *sql.DB) (int, error) {
	if ctx == nil {
		return 0, errors.New("txlock: PurgeOnce needs a context, got nil")
	}
	if db == nil {
		return 0, fmt.Errorf("purge once: the *sql.DB is nil")
	}
	return inBatches(ctx, db, "purge once", func(db gen.DBTX, after []byte, most int32) ([][]byte, error) {
		return queries.ExpiredOnce(ctx, db, gen.ExpiredOnceParams{After: after, Limit: most})
	}, func(ctx context.Context, db gen.DBTX, name []byte) (bool, error) {
		return fault.Changed("DeleteOnce")(queries.DeleteOnce(ctx, db, name))
	})
}
