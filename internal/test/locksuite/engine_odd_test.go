package locksuite_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	jobs "github.com/dca00107/lockstep/txlock/job"
)

// TestOddEngines: so is a server that answers what locks rely on, but not all as MySQL and
// MariaDB do. Only Check finds out all of it.
func TestOddEngines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rewrite    func(text string) string
		join, runs bool // whether Join of a plain pool and Install find it; a guarded pool finds what Install does
	}{
		"a transaction is not seen": {func(text string) string {
			return strings.Replace(text, rawsql.Probe, "DO 0", 1)
		}, true, false},
		"a transaction is always seen": {func(text string) string {
			return strings.Replace(text, rawsql.Probe, "SIGNAL SQLSTATE '25001' SET MYSQL_ERRNO = 1568", 1)
		}, false, false},
		"the snapshot is that of BEGIN": {func(text string) string {
			return strings.Replace(text, "START TRANSACTION", "START TRANSACTION WITH CONSISTENT SNAPSHOT", 1)
		}, false, false},
		"the question isn't understood": {func(text string) string {
			return strings.Replace(text, "(SELECT MIN(", "(SELECT MIN[", 1)
		}, true, true},
	} {
		for _, engine := range testdb.Engines() {
			for _, guarded := range []bool{false, true} {
				t.Run(name+"/"+string(engine)+map[bool]string{false: "/plain", true: "/guarded"}[guarded], func(t *testing.T) {
					t.Parallel()
					open, wire := onAnother(t, testdb.Open(t, engine), guarded, c.rewrite)
					pool := open(t)
					if err := schema.Check(t.Context(), pool); !errors.Is(err, schema.ErrEngine) {
						t.Errorf("Check: %v, want ErrEngine", err)
					}
					if err := schema.Install(t.Context(), pool); errors.Is(err, schema.ErrEngine) != c.runs {
						t.Errorf("Install: %v", err)
					}
					switch {
					case !c.join:
						return
					case guarded && !c.runs:
						contradicted(t, pool)
						return
					}
					before := len(wire.Sent())
					err := locksqlc.Run(t.Context(), pool, []txlock.Key{txlock.Named("test:" + rand.Text())}, ran)
					if !errors.Is(err, schema.ErrEngine) || slices.ContainsFunc(wire.Sent()[before:], writes.MatchString) {
						t.Errorf("Run: %v, sent %q", err, wire.Sent()[before:])
					}
				})
			}
		}
	}
}

// contradicted ends a statement by an error after which a guarded pool asks whether the
// transaction is still open. A success that says itself that it is can't be believed.
func contradicted(t *testing.T, pool *sql.DB) {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), nil)
	check(t, err)
	defer func() { _ = tx.Rollback() }()
	check(t, second(txlock.Join(t.Context(), tx)))
	if _, err := tx.ExecContext(t.Context(), "CREATE TABLE lockstep_broken ("); !errors.Is(err, schema.ErrEngine) {
		t.Errorf("a statement that fails: %v, want ErrEngine", err)
	}
	if err := tx.Commit(); !errors.Is(err, txlock.ErrTxDoomed) {
		t.Errorf("Commit: %v, want ErrTxDoomed", err)
	}
}

// TestEngineBecomesAnother: a job ends when the server does not answer any more as it did, which
// a failover to another engine brings.
func TestEngineBecomesAnother(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		var another atomic.Bool
		open, _ := onAnother(t, testdb.Open(t, engine), false, func(text string) string {
			if another.Load() {
				return locksuite.AsAnotherEngine(text)
			}
			return text
		})
		pool := open(t)
		runner, err := jobs.New(pool, manage(t, pool))
		check(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		err = runner.Run(ctx, txlock.Named("test:"+rand.Text()), jobs.Every(time.Second), func(context.Context, time.Time) error {
			another.Store(true)
			return nil
		})
		if !errors.Is(err, schema.ErrEngine) || !another.Load() {
			t.Errorf("Run: %v after its first tick (%t), want ErrEngine", err, another.Load())
		}
	})
}
