package txlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

// ReadVersion returns the last committed version of a key, outside of any transaction, for example
// when a user opens a form and saves it later with CompareAndBump. Read the version first and the
// data afterwards: in the other order, a commit between the two would be overwritten without a
// conflict. On a replica the version may be an old one, which ends in a conflict. On Vitess the data
// may be older than the version, unless both are read in one transaction, by Scope.Version.
//
// It returns ErrInvalidKey, ErrSchema and the errors of the driver, and ErrInvalidOption if the session
// is at READ UNCOMMITTED, where the version might be one that is not committed. It doesn't know what a
// SET TRANSACTION that no transaction has followed has chosen for its own statement.
func ReadVersion(ctx context.Context, db *sql.DB, key Key) (uint64, error) {
	if ctx == nil {
		return 0, errors.New("txlock: ReadVersion needs a context, got nil")
	}
	if db == nil {
		return 0, fmt.Errorf("read a version: the *sql.DB is nil")
	}
	if err := key.Validate(); err != nil {
		return 0, err
	}
	version, err := key.record().committed(ctx, db)
	return version, fault.Explain(fmt.Sprintf("read the version of %q", fault.Clipped(key.name)), err)
}

// Version returns the version of a key, for CompareAndBump: the token of its last exclusive grant,
// by any call, 0 for a key that was never locked. It locks nothing and doesn't wait. It is a plain
// SELECT: under REPEATABLE READ it shows the version that belongs to the other plain reads of the
// transaction, before or after it; at READ COMMITTED read it before the data. At SERIALIZABLE the
// server makes it a shared lock, and two writers that have both read end in ErrDeadlock. At READ
// UNCOMMITTED it may show a version that is not committed, of a transaction that hasn't written
// yet: so it returns ErrInvalidOption where the session is at that level, and on a guarded pool also
// where the transaction is, where a SET before it may have chosen the level, and where the pool hasn't
// seen it begin, as by a procedure. It doesn't know what a procedure, a function, a trigger, a compound
// statement or EXECUTE has chosen, nor on an unguarded pool the level of a transaction that the program
// has begun: don't use versions there at READ UNCOMMITTED.
//
// It returns ErrInvalidKey, ErrInvalidOption, ErrTxDoomed, ErrNoTransaction, ErrOpenRows and
// ErrSchema, and on TiDB ErrStaleSnapshot after a read of a transaction for which Run has chosen the
// level. The transaction stays open.
func (s *Scope) Version(ctx context.Context, key Key) (uint64, error) {
	const verb = "read the version of"
	if err := cmp.Or(key.Validate(), s.usable(ctx)); err != nil {
		return 0, err
	}
	if s.mayReadUncommitted() {
		return 0, s.failure(verb, key, fmt.Errorf("%w: it may be one that is not committed, since the transaction is at READ UNCOMMITTED, or may be by a statement before it: use READ COMMITTED in sql.TxOptions, on an unguarded pool of Run, Transaction or Optimistic, or for the session", ErrInvalidOption))
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := cmp.Or(s.stillOpen(ctx), s.checked(true)); err != nil {
		return 0, s.failure(verb, key, err)
	}
	r := key.record()
	version, err := s.versionOf(ctx, r)
	if err != nil {
		return 0, s.failure(verb, key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh = false
	if s.seen == nil {
		s.seen = make(map[record]uint64, 1)
	}
	s.seen[r] = version
	return version, nil
}

// mayReadUncommitted reports whether plain reads may show what others have not committed. On an
// unguarded pool only Run and the like know the transaction's level, where it has one of its own.
func (s *Scope) mayReadUncommitted() bool {
	if s.txState != nil {
		return s.txState.MayReadUncommitted()
	}
	return s.unseen || cmp.Or(s.level, s.server.Isolation) == sql.LevelReadUncommitted
}

// CompareAndBump locks the key exclusively if its version is still the given one, that of Version
// or ReadVersion, and increments it: no other transaction has held the key exclusively since. It is
// one statement, which waits for a holder as Lock does, and WaitAtMost limits it. If the
// transaction has read, but has not read this version with Version, it takes one more statement,
// because the version may be newer than what was read.
//
// Afterwards the transaction holds the key as after Lock: Held reports it, Lock returns the same
// grant, and a further CompareAndBump with the same version, or with the one that Version shows
// now, costs no statement on a guarded pool. A key that was locked before has only the version of
// that lock.
//
// It returns ErrConflict if the version differs. Then nothing has changed, but the row may be
// locked until the end of the transaction, which is best rolled back. The error is Retryable,
// because a retry may succeed, if the version was read in the transaction with Version of this
// scope; a version from before the transaction stays different. CompareAndBump returns
// ErrStaleSnapshot if the version is the right one, but the transaction has read data from before
// it, and the errors of Lock.
//
// A hashed key shares its version with the others on its center lock, as it shares the lock: a
// write to one of these is a conflict, too. Between two calls the chance is the number of writes
// to the family in 65,536: use a named family, or the version column of package lockgorm, if a
// user edits in between.
//
// Don't keep a version for longer than Purge keeps unused rows, because a key without a row has
// version 0.
func (s *Scope) CompareAndBump(ctx context.Context, key Key, version uint64) error {
	return s.compareAndBump(ctx, key, version, false)
}

// compareAndBump is CompareAndBump. It may commit the transaction with it.
func (s *Scope) compareAndBump(ctx context.Context, key Key, version uint64, commits bool) error {
	if version > math.MaxInt64 { // that of no row
		return s.failure("compare and bump", key, conflict(version))
	}
	_, err := s.lock(ctx, key, request{verb: "compare and bump", atMost: s.atMost, compares: true, version: version, commits: commits})
	if errors.Is(err, ErrConflict) && !s.saw(key.record(), version) {
		return fmt.Errorf("%w: %w", err, fault.ErrGiven)
	}
	return err
}

// saw reports whether Version has read this in the transaction.
func (s *state) saw(r record, version uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, ok := s.seen[r]
	return ok && seen == version
}

// conflict is the error of a CompareAndBump that came too late.
func conflict(version uint64) error {
	return fmt.Errorf("%w: it is no longer %d", ErrConflict, version)
}

// conflict is the error of a CompareAndBump of what the transaction holds already by
// another version.
func (q request) conflict(h hold) error {
	if !q.compares {
		return nil
	}
	if _, ok := h.comparable(q.version); !ok {
		return fmt.Errorf("%w, but %d by this transaction's own lock", conflict(q.version), h.grant.token)
	}
	return nil
}

// comparable reports whether the version is one that the hold h stands for, the one that
// was compared to get it or its own; held is then the token that the row may carry.
func (h hold) comparable(version uint64) (held uint64, ok bool) {
	ok = h.grant.token > 0 && !h.grant.shared && (version == h.grant.token || h.compared && version == h.base)
	if !ok {
		return noToken, false
	}
	return h.grant.token, true
}

// shownVersion is the snapshot check of CompareAndBump: the version that the snapshot shows, or
// the one that is given where that is it. What Version has read is the snapshot's own. Any other
// is read there: where it is older than the one that is given, and that is the row's, the data
// was read from before it.
func (a *attempt) shownVersion(ctx context.Context) (uint64, error) {
	if !a.snapshot || a.saw(a.record, a.version) || a.ours != noToken {
		return a.version, nil
	}
	a.commits = false // what follows may refuse it
	shown, err := a.tokenOrZero(a.own(ctx, guard.Call{Reads: true}), a.tx)
	if err == nil && shown > a.version {
		err = conflict(a.version)
	}
	return shown, err
}

// committed reads the token outside of transactions, 0 where there is no row.
func (r record) committed(ctx context.Context, db gen.DBTX) (version uint64, err error) {
	row, known := gen.NamedVersionRow{}, tokenOf("NamedVersion")
	if r.hashed {
		var center gen.CenterVersionRow
		center, err = queries.CenterVersion(ctx, db, uint32(r.slot))
		row, known = gen.NamedVersionRow(center), tokenOf("CenterVersion")
	} else {
		row, err = queries.NamedVersion(ctx, db, []byte(r.name))
	}
	switch version, err = r.found(known(row.Token, err)); {
	case errors.Is(err, errMissing):
		return 0, nil
	case err == nil && session.LevelOf(strings.TrimPrefix(row.Level, rawsql.LevelBegin)) <= sql.LevelReadUncommitted:
		return 0, fmt.Errorf("%w: it may be one that is not committed, since the session is at READ UNCOMMITTED, or its level isn't known: set READ COMMITTED", ErrInvalidOption)
	}
	return version, err
}

// tokenOrZero reads the token, 0 where there is no row.
func (r record) tokenOrZero(ctx context.Context, db gen.DBTX) (uint64, error) {
	version, err := r.read(ctx, db)
	if errors.Is(err, errMissing) {
		return 0, nil
	}
	return version, err
}
