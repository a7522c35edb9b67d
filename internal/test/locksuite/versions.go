package locksuite

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// versions are the promises of optimistic locks.
var versions = []behaviour{
	{"a version that nobody has changed is raised, and the key held", raises},
	{"a version that an optimistic writer has raised is a conflict", conflictsWithOptimistic},
	{"a version that a lock has raised is a conflict", conflictsWithLock},
	{"an optimistic write makes a later lock's snapshot stale", makesStale},
	{"a compare waits for the holder, and what he rolls back is no conflict", comparesBehindHolder},
	{"a compare waits at most", comparesAtMost},
	{"a version newer than the snapshot is refused", refusesNewer},
	{"a held key is compared by what this transaction knows", comparesHeld},
	{"a compare asks again after a savepoint", comparesAfterSavepoint},
	{"a refused compare changes nothing", changesNothing},
	{"bad keys have no version", hasNoVersion},
}

// version reads the version of a key.
func (s *session) version(key txlock.Key) uint64 {
	s.e.Helper()
	version, err := s.Version(s.e.Context(), key)
	if err != nil {
		s.e.Fatalf("Version(%v): %v", key, err)
	}
	return version
}

// bump compares, and must succeed.
func (s *session) bump(key txlock.Key, version uint64) txlock.Grant {
	s.e.Helper()
	if err := s.CompareAndBump(s.e.Context(), key, version); err != nil {
		s.e.Fatalf("CompareAndBump(%v, %d): %v", key, version, err)
	}
	grant, held := s.Held(key)
	if !held || grant.Shared() || grant.Token() < version || grant.Key() != key {
		s.e.Fatalf("after CompareAndBump(%v, %d) held=%t, %+v", key, version, held, grant)
	}
	return grant
}

// conflict compares, and must be refused.
func (s *session) conflict(key txlock.Key, version uint64) {
	s.e.Helper()
	s.e.wants(s.CompareAndBump(s.e.Context(), key, version), txlock.ErrConflict)
}

// committed returns the version as it was committed.
func (e *env) committed(key txlock.Key) uint64 {
	e.Helper()
	version, err := e.readVersion(key)
	e.wants(err, nil)
	return version
}

func (e *env) readVersion(key txlock.Key) (uint64, error) {
	if e.memory != nil {
		return e.memory.ReadVersion(e.Context(), key)
	}
	return txlock.ReadVersion(e.Context(), e.pool.DB(), key)
}

func raises(e *env) {
	key := e.key()
	before := e.committed(key)
	if before != 0 && !key.Hashed() {
		e.Errorf("version %d of a key that was never locked", before)
	}
	s := e.begin()
	if v := s.version(key); v != before {
		e.Errorf("version %d, committed %d", v, before)
	}
	grant := s.bump(key, before)
	e.busy(key)
	if v := s.version(key); v != grant.Token() {
		e.Errorf("version %d in the transaction that has raised it to %d", v, grant.Token())
	}
	if v := e.committed(key); v != before {
		e.Errorf("version %d before COMMIT, want %d", v, before)
	}
	s.commit()
	if v := e.committed(key); v != grant.Token() {
		e.Errorf("version %d after COMMIT, want %d", v, grant.Token())
	}
	next := e.begin() // by a version read before the transaction, as its first statement
	second := next.bump(key, grant.Token())
	e.wants(next.Rollback(), nil)
	if v := e.committed(key); v != grant.Token() {
		e.Errorf("version %d after ROLLBACK, want %d", v, grant.Token())
	}
	third := e.begin()
	if token := third.bump(key, grant.Token()).Token(); token <= second.Token() {
		e.Errorf("token %d after one that was rolled back, %d", token, second.Token())
	}
	third.commit()
}

func conflictsWithOptimistic(e *env) {
	key := e.key()
	s, other := e.begin(), e.begin()
	version := s.version(key)
	other.bump(key, other.version(key))
	other.commit()
	err := s.CompareAndBump(e.Context(), key, version)
	e.wants(err, txlock.ErrConflict)
	if !txlock.Retryable(err) {
		e.Errorf("not retryable, though read in the transaction: %v", err)
	}
	e.wants(s.Verify(e.Context()), nil)
	if _, held := s.Held(key); held {
		e.Error("Held after a conflict")
	}
	e.wants(s.Rollback(), nil)
	late := e.begin() // with the version from before the transaction
	err = late.CompareAndBump(e.Context(), key, version)
	e.wants(err, txlock.ErrConflict)
	if txlock.Retryable(err) {
		e.Errorf("retryable, though from before the transaction: %v", err)
	}
	e.wants(late.Rollback(), nil)
	again := e.begin()
	again.bump(key, again.version(key))
	again.commit()
}

func conflictsWithLock(e *env) {
	key, another := e.key(), e.apart()
	for _, lock := range []func(s *session) error{
		func(s *session) error { _, err := s.Lock(e.Context(), key); return err },
		func(s *session) error { _, err := s.WaitAtMost(time.Minute).Lock(e.Context(), key); return err },
		func(s *session) error { _, err := s.LockAll(e.Context(), another, key); return err },
	} {
		s, other := e.begin(), e.begin()
		version := s.version(key)
		e.wants(lock(other), nil)
		other.commit()
		s.conflict(key, version)
		e.wants(s.Rollback(), nil)
	}
	if e.cluster {
		return
	}
	s, reader := e.begin(), e.begin()
	version := s.version(key)
	_, err := reader.RLock(e.Context(), key)
	e.wants(err, nil)
	reader.commit()
	s.bump(key, version) // a reader is none
	s.commit()
}

func makesStale(e *env) {
	key, table := e.key(), e.numbers()
	s, other := e.late(table), e.begin()
	other.bump(key, other.version(key))
	other.commit()
	_, err := s.Lock(e.Context(), key)
	e.stale(err)
}

func comparesBehindHolder(e *env) {
	for _, commits := range []bool{true, false} {
		key := e.key()
		first := e.begin() // the first transaction of a key that rolls back costs its waiters an ErrDeadlock
		first.lock(key)
		first.commit()
		holder, s := e.begin(), e.begin()
		version := s.version(key)
		holder.lock(key)
		answered := s.waiting(func() (txlock.Grant, error) {
			return txlock.Grant{}, s.CompareAndBump(e.Context(), key, version)
		})
		if !commits {
			e.wants(holder.Rollback(), nil)
			e.wants((<-answered).err, nil)
			e.busy(key)
			s.commit()
			continue
		}
		holder.commit()
		e.wants((<-answered).err, txlock.ErrConflict)
		e.wants(s.Verify(e.Context()), nil)
		e.wants(s.Rollback(), nil)
	}
}

func comparesAtMost(e *env) {
	const limit = 120 * time.Millisecond
	key, table := e.key(), e.numbers()
	first := e.begin()
	first.lock(key)
	first.commit()
	holder, s := e.begin(), e.begin()
	version := s.version(key)
	holder.lock(key)
	e.wants(s.Exec(e.Context(), "UPDATE "+table+" SET n = 3"), nil)
	began := time.Now()
	e.wants(s.WaitAtMost(limit).CompareAndBump(e.Context(), key, version), txlock.ErrWaitTimeout)
	if waited := time.Since(began); waited < limit {
		e.Errorf("gave up after %v", waited)
	}
	e.wants(s.WaitAtMost(-limit).CompareAndBump(e.Context(), key, version), txlock.ErrInvalidOption)
	e.wants(holder.Rollback(), nil)
	e.wants(s.WaitAtMost(time.Minute).CompareAndBump(e.Context(), key, version), nil)
	s.commit()
	if n := e.begin().read(table); n != 3 {
		e.Errorf("the write before the timeout is %d after COMMIT, want 3", n)
	}
	late := e.begin()
	e.wants(late.WaitAtMost(time.Minute).CompareAndBump(e.Context(), key, version), txlock.ErrConflict)
	e.wants(late.Rollback(), nil)
	fresh := e.begin()
	other := e.apart()
	e.wants(fresh.WaitAtMost(time.Minute).CompareAndBump(e.Context(), other, e.committed(other)), nil)
	fresh.commit()
}

func refusesNewer(e *env) {
	key, table := e.key(), e.numbers()
	s, other := e.late(table), e.begin() // it has read
	token := other.lock(key).Token()
	other.commit()
	err := s.CompareAndBump(e.Context(), key, e.committed(key))
	e.stale(err)
	if err != nil {
		e.wants(s.Verify(e.Context()), nil)
		e.wants(s.Rollback(), nil)
		s = e.begin()
		err = s.CompareAndBump(e.Context(), key, token)
	}
	e.wants(err, nil)
	s.commit()
	older := e.late(table)
	older.conflict(key, token) // as the snapshot shows already
}

func comparesHeld(e *env) {
	key := e.key()
	s := e.begin()
	version := s.version(key)
	grant := s.bump(key, version)
	for _, same := range []uint64{version, s.version(key), version} { // two services in one transaction
		if again := s.bump(key, same); again != grant {
			e.Errorf("compared with %d again: %+v, first %+v", same, again, grant)
		}
		if again := s.lock(key); again != grant {
			e.Errorf("locked after the compare: %+v, want %+v", again, grant)
		}
	}
	s.conflict(key, grant.Token()-1)
	s.commit()

	locked := e.begin()
	before := locked.version(key)
	token := locked.lock(key).Token()
	locked.conflict(key, before) // somebody may have come between the version and the lock
	if again := locked.bump(key, locked.version(key)); again.Token() != token {
		e.Errorf("compared under the lock: %+v, want token %d", again, token)
	}
	locked.commit()

	if e.cluster {
		return
	}
	shared := e.begin()
	_, err := shared.RLock(e.Context(), key)
	e.wants(err, nil)
	e.wants(shared.CompareAndBump(e.Context(), key, shared.version(key)), txlock.ErrUpgrade)
	e.wants(shared.Verify(e.Context()), nil)
}

func comparesAfterSavepoint(e *env) {
	key := e.key()
	s := e.begin()
	version := s.version(key)
	e.wants(s.Savepoint(e.Context(), "before_compare"), nil)
	s.bump(key, version)
	e.wants(s.RollbackTo(e.Context(), "before_compare"), nil)
	if _, held := s.Held(key); held && e.adapter.Guarded {
		e.Error("Held after a rollback to a savepoint")
	}
	grant := s.bump(key, version)
	e.wants(s.Savepoint(e.Context(), "after_compare"), nil)
	e.wants(s.RollbackTo(e.Context(), "after_compare"), nil)
	if again := s.bump(key, version); again != grant {
		e.Errorf("compared again after a savepoint that kept it: %+v, want %+v", again, grant)
	}
	e.busy(key)
	s.commit()
	if v := e.committed(key); v != grant.Token() {
		e.Errorf("version %d, want %d", v, grant.Token())
	}
}

func changesNothing(e *env) {
	key := e.key()
	query, arg := "SELECT COUNT(*), COALESCE(SUM(token), 0), COALESCE(SUM(locked_us), 0), COALESCE(SUM(conn_id), 0), COALESCE(MAX(CONVERT(owner USING utf8mb4)), '') FROM ", any(key.String())
	if key.Hashed() {
		query, arg = query+"lockstep_centers WHERE slot = ?", key.Slot()
	} else {
		query += "lockstep_locks WHERE name = ?"
	}
	type row struct {
		rows, token, locked, conn uint64
		owner                     string
	}
	look := func() (r row) {
		e.Helper()
		err := e.db.Admin().QueryRowContext(e.Context(), query, arg).Scan(&r.rows, &r.token, &r.locked, &r.conn, &r.owner)
		e.wants(err, nil)
		return r
	}
	wrong := e.committed(key) + 4711
	for _, end := range []func(s *session) error{(*session).Rollback, (*session).Commit} {
		before := look()
		s := e.begin()
		s.conflict(key, wrong)
		e.wants(end(s), nil)
		after := look()
		if before.rows == 0 && after.rows == 1 {
			before = row{1, 0, after.locked, after.conn, after.owner} // made, and never granted
		}
		if after != before {
			e.Errorf("the row was %+v and is %+v after a refused compare", before, after)
		}
	}
	granted := e.begin()
	token := granted.bump(key, wrong-4711).Token()
	granted.commit()
	if after := look(); after.token != token || after.conn != uint64(granted.id) || after.owner == "-" || after.locked < token-token/1000 {
		e.Errorf("the row is %+v after a grant with token %d to session %d", after, token, granted.id)
	}
}

func hasNoVersion(e *env) {
	s := e.begin()
	for _, bad := range []txlock.Key{{}, txlock.Named(""), e.kind.family.Key(0)} {
		_, err := s.Version(e.Context(), bad)
		e.wants(err, txlock.ErrInvalidKey)
		e.wants(s.CompareAndBump(e.Context(), bad, 0), txlock.ErrInvalidKey)
		_, err = e.readVersion(bad)
		e.wants(err, txlock.ErrInvalidKey)
	}
	if _, err := txlock.ReadVersion(e.Context(), nil, e.key()); err == nil {
		e.Error("ReadVersion without a pool")
	}
	key := e.key()
	ended, cancel := context.WithCancel(e.Context())
	cancel()
	_, err := s.Version(ended, key)
	e.wants(err, context.Canceled)
	e.wants(s.CompareAndBump(ended, key, 0), context.Canceled)
	e.wants(s.Rollback(), nil)
	_, err = s.Version(e.Context(), key)
	e.wants(err, txlock.ErrNoTransaction)
	e.wants(s.CompareAndBump(e.Context(), key, 0), txlock.ErrNoTransaction)
}
