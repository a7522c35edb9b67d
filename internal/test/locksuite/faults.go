package locksuite

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

func refusesBadKeys(e *env) {
	table := e.numbers()
	s := e.begin()
	e.wants(s.Exec(e.Context(), "UPDATE "+table+" SET n = 5"), nil)
	var zero txlock.Key
	for _, key := range []txlock.Key{
		zero,
		txlock.Named(""),
		txlock.Named(strings.Repeat("k", 256)),
		txlock.Named("caf\xe9"),
		e.kind.family.Key(0),
		txlock.NewFamily[string]("a:b", txlock.Exact()).Key("c"),
	} {
		_, err := s.Lock(e.Context(), key)
		e.wants(err, txlock.ErrInvalidKey)
		_, err = s.LockAll(e.Context(), e.key(), key)
		e.wants(err, txlock.ErrInvalidKey)
		_, err = s.LockAny(e.Context(), key)
		e.wants(err, txlock.ErrInvalidKey)
	}
	s.lock(txlock.Named(strings.Repeat("k", 230) + e.key().String()))
	s.commit()
	if n := e.begin().read(table); n != 5 {
		e.Errorf("the write before the refusals is %d", n)
	}
}

func endedContext(e *env) {
	key := e.key()
	s := e.begin()
	ended, cancel := context.WithCancel(e.Context())
	cancel()
	_, err := s.Lock(ended, key)
	e.wants(err, context.Canceled)
	e.wants(s.Verify(e.Context()), nil)
	s.lock(key)
	s.commit()
}

func cancelledWait(e *env) {
	mine, theirs := e.key(), e.apart()
	holder, waiter := e.begin(), e.begin()
	holder.lock(theirs)
	waiter.lock(mine)
	ctx, cancel := context.WithCancel(e.Context())
	answered := waiter.waiting(func() (txlock.Grant, error) { return waiter.Lock(ctx, theirs) })
	cancel()
	err := (<-answered).err
	e.wants(err, context.Canceled)
	_, err = waiter.Lock(e.Context(), e.key())
	if err == nil {
		e.Error("a transaction whose connection is gone was given a lock")
	}
	if !e.adapter.Guarded {
		holder.commit() // the abandoned session ends with its wait
	} else {
		e.wants(err, txlock.ErrTxDoomed)
		e.wants(waiter.Commit(), txlock.ErrTxDoomed)
	}
	if e.memory == nil {
		e.db.WaitGone(e, waiter.id)
	}
	e.free(mine)
}

func deadlocks(e *env) {
	a, b := e.key(), e.key()
	table := e.numbers()
	victim, other := e.begin(), e.begin()
	victim.lock(a)
	// The server rolls back the transaction that has changed the fewest rows.
	e.wants(other.Exec(e.Context(), "INSERT INTO "+table+" SELECT 10 + d.n, 0 FROM ("+hundred+") d"), nil)
	other.lock(b)
	answered := victim.waiting(func() (txlock.Grant, error) { return victim.Lock(e.Context(), b) })
	_, err := other.Lock(e.Context(), a)
	e.wants(err, nil)
	err = (<-answered).err
	e.wants(err, txlock.ErrDeadlock)
	if !txlock.Retryable(err) {
		e.Errorf("not retryable: %v", err)
	}
	_, err = victim.Lock(e.Context(), a)
	e.wants(err, txlock.ErrTxDoomed)
	if e.adapter.Guarded {
		e.wants(victim.Exec(e.Context(), "UPDATE "+table+" SET n = 99"), txlock.ErrTxDoomed)
		e.wants(victim.Commit(), txlock.ErrTxDoomed)
	}
	other.commit()
	if n := e.begin().read(table); n != 0 {
		e.Errorf("the victim has written %d", n)
	}
}

const hundred = "SELECT a.n * 10 + b.n AS n FROM (" + ten + ") a CROSS JOIN (" + ten + ") b"
const ten = "SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9"

func implicitCommit(e *env) {
	key := e.key()
	table := e.numbers()
	s := e.begin()
	s.lock(key)
	_, err := s.Int(e.Context(), "SELECT COUNT(*) FROM "+table) // ends no transaction
	e.wants(err, nil)
	// A commit that needs no privilege and answers without rows.
	e.wants(s.Exec(e.Context(), "SET autocommit = 0"), nil)
	s.lock(key)
	want := map[bool]error{true: txlock.ErrTxDoomed}[e.adapter.Guarded] // it may as well have been rolled back
	e.wants(s.Exec(e.Context(), "SET autocommit = 1"), want)
	_, err = s.Lock(e.Context(), e.key())
	e.wants(err, txlock.ErrTxDoomed)
	if txlock.Retryable(err) {
		e.Errorf("what was committed must not be run again: %v", err)
	}
	e.free(key)
	if e.adapter.Guarded {
		if err := s.Commit(); !errors.Is(err, txlock.ErrTxDoomed) || !strings.Contains(err.Error(), "SET AUTOCOMMIT") {
			e.Errorf("COMMIT after an implicit commit: %v", err)
		}
	}
}

func finished(e *env) {
	key := e.key()
	s := e.begin()
	s.lock(key)
	s.commit()
	_, err := s.Lock(e.Context(), key)
	e.wants(err, txlock.ErrNoTransaction)
	_, err = s.TryRLock(e.Context(), e.key())
	e.wants(err, txlock.ErrNoTransaction)
	_, err = s.LockAll(e.Context(), key, e.key())
	e.wants(err, txlock.ErrNoTransaction)
}

func savepoint(e *env) {
	key := e.key()
	s := e.begin()
	e.wants(s.Savepoint(e.Context(), "before_lock"), nil)
	first := s.lock(key)
	e.wants(s.RollbackTo(e.Context(), "before_lock"), nil)
	if _, held := s.Held(key); held && e.adapter.Guarded {
		e.Error("Held after a rollback to a savepoint, which may have freed the lock")
	}
	second := s.lock(key)
	if second.Token() < first.Token() {
		e.Errorf("token %d after %d", second.Token(), first.Token())
	}
	e.busy(key)
	s.commit()
	e.free(key)
}

func openRows(e *env) {
	s := e.begin()
	opener, ok := s.Session.(interface {
		Rows(ctx context.Context, query string) (*sql.Rows, error)
	})
	if !ok {
		e.Fatalf("%T can't open rows", s.Session)
	}
	rows, err := opener.Rows(e.Context(), hundred)
	e.wants(err, nil)
	defer rows.Close()
	if !rows.Next() {
		e.Fatal("no row")
	}
	_, err = s.Lock(e.Context(), e.key())
	if !e.adapter.Guarded {
		// The driver has given up the connection: no lock, and no pretence.
		if err == nil {
			e.Error("a lock was given beside open rows")
		}
		return
	}
	e.wants(err, txlock.ErrOpenRows)
	e.wants(errors.Join(rows.Err(), rows.Close()), nil)
	s.lock(e.key())
	s.commit()
}

func concurrent(e *env) {
	key := e.key()
	keys := []txlock.Key{e.key(), e.key(), e.key(), key}
	s := e.begin()
	s.lock(keys[1])
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for i := range 8 {
		wg.Go(func() {
			var err error
			switch i % 4 {
			case 0:
				_, err = s.Lock(e.Context(), key)
			case 1:
				_, err = s.LockAll(e.Context(), keys...)
			case 2:
				_, err = s.TryRLock(e.Context(), keys[1])
			case 3:
				s.Held(key)
				err = s.Verify(e.Context())
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		e.wants(err, nil)
	}
	for _, key := range keys {
		e.busy(key)
	}
	s.commit()
}

var (
	slotsMu sync.Mutex
	slots   = map[testdb.Engine]map[uint16]bool{}
)

// claim says that a center lock belongs to this test.
func claim(engine testdb.Engine, slot uint16) bool {
	slotsMu.Lock()
	defer slotsMu.Unlock()
	if slots[engine] == nil {
		slots[engine] = make(map[uint16]bool)
	}
	if slots[engine][slot] {
		return false
	}
	slots[engine][slot] = true
	return true
}
