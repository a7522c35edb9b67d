package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// verb is what a trial calls, or does until its COMMIT.
type verb struct {
	name, key string
	how       string // tells trials of one row of the page from each other
	run       func(r *trial) error
	commits   string // of a verb that commits: a statement that it has sent then
}

func (v verb) String() string { return strings.TrimSpace(v.name + ", " + v.key + " " + v.how) }

// exception is a verb that may lock a gap, at some levels.
type exception struct {
	verb, key string
	levels    []sql.IsolationLevel
	why       string
}

// gaps are all exceptions.
var gaps = []exception{
	{"Version", "new", levels[2:], missingRow},
	{"CompareAndBump", "new", levels[2:], missingRow},
	{"TryLock", "new", levels[2:], missingRow + ": on MySQL, on a pool that isn't guarded"},
	{"TryRLock", "new", levels[2:], missingRow + ": on MySQL, on a pool that isn't guarded"},
	{"WaitAtMost, Lock", "new", levels[2:], missingRow + ": on MySQL, on a pool that isn't guarded"},
	{"WaitAtMost, RLock", "new", levels[2:], missingRow + ": on MySQL, on a pool that isn't guarded"},
}

const missingRow = "a plain read of a row that is missing locks its place at SERIALIZABLE"

// judge returns the locks as the page shows them, and reports those that must not be.
func (f *findings) judge(r *trial, v verb, locks []testdb.Lock) (shown []string) {
	r.Helper()
	for _, l := range locks {
		table, ours := strings.CutPrefix(l.Table, "lockstep_")
		seal := strings.HasPrefix(l.Name, "\xFFlockstep:seal:") && !l.Gap // of SealOnce, on a server without a binary log
		if !ours || strings.HasPrefix(l.Mode, "I") || seal {              // the program's, or an intention
			continue
		}
		what := l.Mode + " `" + table + "`"
		switch {
		case l.Gap:
			what = l.Mode + "+gap `" + table + "`"
			at := slices.IndexFunc(gaps, func(g exception) bool {
				return g.verb == v.name && g.key == v.key && slices.Contains(g.levels, r.level)
			})
			if at < 0 {
				r.Errorf("%s at %v locks a gap: %+v", v, r.level, l)
			} else {
				f.mu.Lock()
				f.gaps = append(f.gaps, v.name+", "+v.key)
				f.mu.Unlock()
			}
		case !r.owns(l):
			what += " of another key"
			r.Errorf("%s at %v locks the row of another key: %+v", v, r.level, l)
		}
		shown = append(shown, what)
	}
	return sorted(shown)
}

// ofScope is a verb of a scope, with a key that is new, known to this process, or made by
// another, as the first of its transaction or behind a read.
func ofScope(name string, call func(r *trial, ctx context.Context) error) (all []verb) {
	for _, state := range []string{"new", "known", "unseen"} {
		key := map[bool]string{true: "new", false: "existing"}[state == "new"]
		all = append(all, twice(verb{name: name, key: key, how: state}, func(r *trial) { r.make(state) }, call)...)
	}
	return all
}

// twice is a verb as the first of its transaction, and behind a read.
func twice(v verb, prepare func(r *trial), call func(r *trial, ctx context.Context) error) (all []verb) {
	for _, reads := range []bool{false, true} {
		all = append(all, verb{name: v.name, key: v.key, how: fmt.Sprintf("%s after a read: %t", v.how, reads), run: func(r *trial) error {
			prepare(r)
			r.beginBehind(reads)
			return call(r, r.Context())
		}})
	}
	return all
}

// make makes the rows of the verb's keys.
func (r *trial) make(state string) {
	r.Helper()
	switch state {
	case "known":
		check(r, txlock.Ensure(r.Context(), r.db.Admin(), r.key(), r.second()))
	case "unseen":
		r.exec("INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) VALUES (?, 0, '-', 0, 0), (?, 0, '-', 0, 0)", r.key().String(), r.second().String())
	}
}

// ofHashed is a verb of a scope with a hashed key.
func ofHashed(name string, call func(r *trial, ctx context.Context) error) []verb {
	return twice(verb{name: name, key: "hashed"}, func(*trial) {}, call)
}

// compare is CompareAndBump with the version that a row has.
func compare(ctx context.Context, r *trial, key txlock.Key) error {
	var version uint64
	err := r.db.Admin().QueryRowContext(ctx, "SELECT token FROM lockstep_centers WHERE slot = ?", key.Slot()).Scan(&version)
	if err != nil {
		return err
	}
	return r.scope.CompareAndBump(ctx, key, version)
}

// verbs are all that send statements in a caller's transaction.
var verbs = slices.Concat(
	ofScope("Lock", func(r *trial, ctx context.Context) error { return second(r.scope.Lock(ctx, r.key())) }),
	ofScope("TryLock", func(r *trial, ctx context.Context) error { return second(r.scope.TryLock(ctx, r.key())) }),
	ofScope("RLock", func(r *trial, ctx context.Context) error { return second(r.scope.RLock(ctx, r.key())) }),
	ofScope("TryRLock", func(r *trial, ctx context.Context) error { return second(r.scope.TryRLock(ctx, r.key())) }),
	ofScope("WaitAtMost, Lock", func(r *trial, ctx context.Context) error {
		return second(r.scope.WaitAtMost(time.Minute).Lock(ctx, r.key()))
	}),
	ofScope("WaitAtMost, RLock", func(r *trial, ctx context.Context) error {
		return second(r.scope.WaitAtMost(time.Minute).RLock(ctx, r.key()))
	}),
	ofScope("LockAll", func(r *trial, ctx context.Context) error { return second(r.scope.LockAll(ctx, r.second(), r.key())) }),
	ofScope("RLockAll", func(r *trial, ctx context.Context) error { return second(r.scope.RLockAll(ctx, r.second(), r.key())) }),
	ofScope("CompareAndBump", func(r *trial, ctx context.Context) error { return r.scope.CompareAndBump(ctx, r.key(), 0) }),
	ofScope("Version", func(r *trial, ctx context.Context) error { return second(r.scope.Version(ctx, r.key())) }),
	ofHashed("Lock", func(r *trial, ctx context.Context) error { return second(r.scope.Lock(ctx, r.hashed())) }),
	ofHashed("TryLock", func(r *trial, ctx context.Context) error { return second(r.scope.TryLock(ctx, r.hashed())) }),
	ofHashed("RLock", func(r *trial, ctx context.Context) error { return second(r.scope.RLock(ctx, r.hashed())) }),
	ofHashed("LockAll", func(r *trial, ctx context.Context) error {
		return second(r.scope.LockAll(ctx, r.hashed(), hashed.Key("kk")))
	}),
	ofHashed("CompareAndBump", func(r *trial, ctx context.Context) error { return compare(ctx, r, r.hashed()) }),
	ofHashed("Version", func(r *trial, ctx context.Context) error { return second(r.scope.Version(ctx, r.hashed())) }),
	onceVerbs, leaseVerbs,
	[]verb{{name: "job.TickTx", key: "existing", run: (*trial).tick, commits: "JobDone"}},
)

// onceVerbs are Once of a key that is new, that was asked for, and whose time is over, and OnceValue.
var onceVerbs = []verb{
	onceOf("new", 0), onceOf("existing", 3600e6), onceOf("expired", 1),
	{name: "OnceValue, to its COMMIT", key: "new", run: (*trial).onceValue, commits: "AnswerOnce"},
	{name: "OnceValue, to its COMMIT", key: "existing", commits: "SealOnce", run: func(r *trial) error {
		return errors.Join(r.onceValue(), r.onceValue())
	}},
	{name: "Once, to its COMMIT", key: "new, kept for a microsecond", commits: "ProlongOnce", run: func(r *trial) error {
		return second(locksqlc.Once(r.Context(), r.pool, r.key(), func(*sql.Tx) error { return nil }, txlock.Keep(time.Microsecond)))
	}},
}

func (r *trial) onceValue() error {
	_, _, err := locksqlc.OnceValue(r.Context(), r.pool, r.key(), func(*sql.Tx) (int, error) { return 7, nil })
	return err
}

func onceOf(key string, keepUs int) verb {
	return verb{name: "Once", key: key, run: func(r *trial) error {
		if keepUs > 0 {
			r.exec("INSERT INTO lockstep_once (name, fingerprint, result, done_us, keep_us) VALUES (?, '-', '-', UNIX_TIMESTAMP() * 1000000 - 1000000, ?)", r.key().String(), keepUs)
		}
		r.begin()
		return second(r.scope.Once(r.Context(), r.key()))
	}}
}

// leaseVerbs are Guard and AcquireTx of leases in several states.
var leaseVerbs = slices.Concat(
	twice(verb{name: "Lease.Guard", key: "held"}, func(r *trial) {
		r.held = leasetest.Got(r.manager().TryAcquire(r.Context(), r.key()))(r)
	}, func(r *trial, ctx context.Context) error { return r.held.Guard(ctx, r.tx) }),
	acquireTx("new", func(*trial) {}),
	[]verb{{name: "AcquireTx", key: "acquired in this transaction", run: func(r *trial) error {
		m, ctx := r.manager(), lease.WithOwner(r.Context(), r.base)
		r.begin()
		_, err := m.AcquireTx(ctx, r.tx, r.key())
		return errors.Join(err, second(m.AcquireTx(ctx, r.tx, r.key())))
	}}},
	acquireTx("free, no connection left", func(r *trial) {
		r.pool.SetMaxOpenConns(1)
		r.lease(r.key().String(), 0, 0)
	}),
	acquireTx("free", func(r *trial) { r.lease(r.key().String(), 0, 0) }),
	acquireTx("expired", func(r *trial) {
		r.lease(r.key().String(), 0, 0)
		r.exec("UPDATE lockstep_leases SET owner = 'other', holders = ';12345678', ttl_us = 1, expires_us = 1 WHERE name = ? AND slot = 0", r.key().String())
	}),
	acquireTx("formerly shared", func(r *trial) {
		for slot := range 3 {
			r.lease(r.key().String(), slot, 1)
		}
	}),
)

// acquireTx is AcquireTx of a lease whose rows prepare makes.
func acquireTx(key string, prepare func(r *trial)) []verb {
	return twice(verb{name: "AcquireTx", key: key}, func(r *trial) {
		prepare(r)
		r.leases = r.manager()
	}, func(r *trial, ctx context.Context) error { return second(r.leases.AcquireTx(ctx, r.tx, r.key())) })
}
