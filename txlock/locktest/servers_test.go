package locktest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// onMemories runs a test on the stand-ins of both servers. What they do is compared with
// the servers by internal/test/differential.
func onMemories(t *testing.T, test func(t *testing.T, memory *locktest.Memory, mysql bool)) {
	t.Helper()
	t.Run("mariadb", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, locktest.NewMemory(), false) })
	})
	t.Run("mysql", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, locktest.NewMemory(locktest.OnMySQL), true) })
	})
}

// TestStaleSnapshotOfServers: MariaDB ends the transaction, MySQL goes on.
func TestStaleSnapshotOfServers(t *testing.T) {
	onMemories(t, func(t *testing.T, memory *locktest.Memory, mysql bool) {
		reader, writer, key := memory.Begin(), memory.Begin(), orders.Key(1)
		reader.Snapshot()
		_, err := writer.Lock(t.Context(), key)
		must(t, err)
		must(t, writer.Commit())
		grant, err := reader.Lock(t.Context(), key)
		wants(t, "Lock", err, txlock.ErrStaleSnapshot)
		if grant != (txlock.Grant{}) {
			t.Errorf("it has granted %+v", grant)
		}
		_, busy := memory.Begin().TryLock(t.Context(), key)
		if mysql {
			wants(t, "TryLock of another", busy, txlock.ErrBusy)
			must(t, reader.Commit())
			return
		}
		must(t, busy)
		wants(t, "Commit", reader.Commit(), txlock.ErrTxDoomed)
	})
}

// TestReadCommittedIsNeverStale has no snapshot.
func TestReadCommittedIsNeverStale(t *testing.T) {
	onMemories(t, func(t *testing.T, memory *locktest.Memory, _ bool) {
		reader, err := memory.BeginTx(&sql.TxOptions{Isolation: sql.LevelReadCommitted})
		must(t, err)
		writer, key := memory.Begin(), orders.Key(1)
		reader.Snapshot()
		_, err = writer.Lock(t.Context(), key)
		must(t, err)
		must(t, writer.Commit())
		grant, err := reader.Lock(t.Context(), key)
		must(t, err)
		version, err := reader.Version(t.Context(), key)
		if version != grant.Token() || err != nil {
			t.Errorf("version %d, %v, of the grant %+v", version, err, grant)
		}
		if _, err := memory.BeginTx(nil); err != nil {
			t.Error(err)
		}
		_, err = memory.BeginTx(&sql.TxOptions{Isolation: sql.LevelSerializable})
		wants(t, "SERIALIZABLE", err, txlock.ErrInvalidOption)
	})
}

// TestNeverCommitted: the first to lock a key shared makes its row, and excludes, unless the lock
// begins the transaction. Ensure makes it before.
func TestNeverCommitted(t *testing.T) {
	onMemories(t, func(t *testing.T, memory *locktest.Memory, mysql bool) {
		fresh, ensured := orders.Key(1), orders.Key(2)
		must(t, memory.Ensure(t.Context(), ensured))
		first, second := memory.Begin(), memory.Begin()
		for _, key := range []txlock.Key{ensured, fresh} {
			_, err := first.RLock(t.Context(), key)
			must(t, err)
		}
		_, err := second.RLock(t.Context(), ensured)
		must(t, err)
		began := time.Now()
		_, err = second.TryRLock(t.Context(), fresh)
		wants(t, "TryRLock", err, txlock.ErrBusy)
		_, err = second.WaitAtMost(100*time.Millisecond).RLock(t.Context(), fresh)
		wants(t, "RLock", err, txlock.ErrWaitTimeout)
		want := 100 * time.Millisecond
		if mysql {
			want = 2 * time.Second
		}
		if took := time.Since(began); took != want {
			t.Errorf("the two have taken %v, not %v", took, want)
		}
		must(t, first.Commit())
		_, err = second.TryRLock(t.Context(), fresh)
		must(t, err)
	})
}

// TestFirstHolderRollsBack ends all who wait for a row that goes, but one of them: a row that was
// made in a transaction which had begun before.
func TestFirstHolderRollsBack(t *testing.T) {
	onMemories(t, func(t *testing.T, memory *locktest.Memory, _ bool) {
		first, key := memory.Begin(), orders.Key(1)
		_, err := first.Lock(t.Context(), orders.Key(2))
		must(t, err)
		_, err = first.Lock(t.Context(), key)
		must(t, err)
		errs := make(chan error, 4)
		for range cap(errs) {
			go func() {
				_, err := memory.Begin().Lock(context.Background(), key)
				errs <- err
			}()
		}
		synctest.Wait()
		must(t, first.Rollback())
		granted := 0
		for range cap(errs) {
			if err := <-errs; err == nil {
				granted++
			} else {
				wants(t, "Lock", err, txlock.ErrDeadlock)
			}
		}
		if granted != 1 {
			t.Errorf("%d were granted", granted)
		}
	})
}

// TestVictim is the one that the test chooses.
func TestVictim(t *testing.T) {
	for i := range 2 {
		synctest.Test(t, func(t *testing.T) {
			var scopes []*locktest.Scope
			memory := locktest.NewMemory(locktest.Victim(func(circle []*locktest.Scope) *locktest.Scope {
				if len(circle) != 2 {
					t.Errorf("%d wait for each other", len(circle))
				}
				return scopes[i]
			}))
			scopes = []*locktest.Scope{memory.Begin(), memory.Begin()}
			for i, s := range scopes {
				_, err := s.Lock(t.Context(), orders.Key(int64(i+1)))
				must(t, err)
			}
			errs := make([]error, 2)
			for i, s := range scopes {
				go func() { _, errs[i] = s.Lock(context.Background(), orders.Key(int64(2-i))) }()
				synctest.Wait()
			}
			wants(t, "the victim's Lock", errs[i], txlock.ErrDeadlock)
			must(t, errs[1-i])
		})
	}
}

// TestSavepointOfServers: what was there before stays locked. Of a row that was made since
// the lock stays at REPEATABLE READ, on MariaDB only if somebody has asked for it.
func TestSavepointOfServers(t *testing.T) {
	onMemories(t, func(t *testing.T, memory *locktest.Memory, mysql bool) {
		for i, c := range []struct {
			level sql.IsolationLevel
			asked bool
			stays bool
		}{
			{sql.LevelRepeatableRead, false, mysql},
			{sql.LevelRepeatableRead, true, true},
			{sql.LevelReadCommitted, false, false},
			{sql.LevelReadCommitted, true, false},
		} {
			ensured, made := carts.Key("e"), orders.Key(int64(i+1))
			s, err := memory.BeginTx(&sql.TxOptions{Isolation: c.level})
			must(t, err)
			s.Snapshot()
			must(t, s.Savepoint("nested"))
			for _, key := range []txlock.Key{made, ensured} {
				_, err = s.Lock(t.Context(), key)
				must(t, err)
			}
			other := memory.Begin()
			if c.asked {
				_, err = other.TryLock(t.Context(), made)
				wants(t, "TryLock before", err, txlock.ErrBusy)
			}
			must(t, s.RollbackTo("nested"))
			_, err = other.TryLock(t.Context(), ensured)
			wants(t, "TryLock of what was there", err, txlock.ErrBusy)
			_, err = other.TryLock(t.Context(), made)
			if busy := errors.Is(err, txlock.ErrBusy); busy != c.stays {
				t.Errorf("%+v: TryLock of what was made: %v", c, err)
			}
			must(t, other.Rollback())
			must(t, s.Rollback())
		}
	})
}
