package elect_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestOnServers proves on every server that one of three leads, that what it writes is
// fenced, that the next leads when it resigns, and who is told to lead; on guarded pools
// and on a plain one.
func TestOnServers(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		key := txlock.Named("test:" + rand.Text())
		table := db.CreateTable(t, "written", "id BIGINT PRIMARY KEY AUTO_INCREMENT, token BIGINT UNSIGNED")
		ctx, cancel := context.WithCancel(t.Context())
		terms := make(chan *elect.Term, 100)
		elections := make(map[string]*elect.Election)
		ended := make(chan error, 3)
		for _, name := range []string{"a", "b", "c"} {
			open := guarded
			if name == "c" {
				open = plain
			}
			pool, err := open(db.DSN())
			must(t, err)
			elections[name] = stand(ctx, t, pool, key, ended, func(ctx context.Context, term *elect.Term) error {
				if err := write(pool, table, term); err != nil {
					t.Error(err)
				}
				terms <- term
				return follow(ctx, term)
			}, elect.InstanceName(name), elect.TTL(time.Minute))
		}
		var last *elect.Term
		for range 6 {
			term := <-terms
			if last != nil && term.Token() <= last.Token() {
				t.Errorf("term %d after %d", term.Token(), last.Token())
			}
			last = term
			leader, err := elections["a"].Leader(t.Context())
			must(t, err)
			if leader.Token != term.Token() || elections[leader.Instance] == nil || leader.Remaining > time.Minute {
				t.Errorf("%+v leads, the term is %d", leader, term.Token())
			}
			must(t, elections[leader.Instance].Resign(t.Context()))
			wants(t, "Err", term.Err(), txlock.ErrNotHeld)
			pool, err := plain(db.DSN())
			must(t, err)
			wants(t, "a write after the term", write(pool, table, term), txlock.ErrNotHeld)
			must(t, pool.Close())
		}
		cancel()
		for range 3 {
			wants(t, "Run", <-ended, context.Canceled)
		}
		var rows, higher int
		must(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*), COUNT(DISTINCT token) FROM "+table).Scan(&rows, &higher))
		if rows < 6 || rows > 7 || rows != higher {
			t.Errorf("%d rows with %d tokens were written", rows, higher)
		}
	})
}

// stand stands for election over a pool, which is closed in the end.
func stand(ctx context.Context, t *testing.T, pool *sql.DB, key txlock.Key, ended chan<- error, fn elect.Func, opts ...elect.Option) *elect.Election {
	t.Helper()
	leases, err := lease.NewManager(pool)
	must(t, err)
	e, err := elect.New(leases, key, opts...)
	must(t, err)
	go func() {
		err := e.Run(ctx, fn)
		if closed := errors.Join(leases.Close(context.WithoutCancel(ctx)), pool.Close()); closed != nil {
			t.Error(closed)
		}
		ended <- err
	}()
	return e
}

func guarded(dsn string) (*sql.DB, error) { return locksqlc.Open(dsn) }

func plain(dsn string) (*sql.DB, error) { return sql.Open("mysql", dsn) }

// write writes a row that is there only if the term counts.
func write(pool *sql.DB, table string, term *elect.Term) error {
	return locksqlc.Run(context.Background(), pool, nil, func(tx *sql.Tx) error {
		if _, err := tx.Exec("INSERT INTO "+table+" (token) VALUES (?)", term.Token()); err != nil {
			return err
		}
		return term.Guard(context.Background(), tx)
	})
}

// TestSmallPools proves that processes with a pool of one or two connections hand over to
// each other, though they have no place in the server's queue.
func TestSmallPools(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		key := txlock.Named("test:" + rand.Text())
		ctx, cancel := context.WithCancel(t.Context())
		terms, ended := make(chan *elect.Term, 100), make(chan error, 4)
		for i, open := range []func(string) (*sql.DB, error){plain, plain, guarded, guarded} {
			pool, err := open(db.DSN())
			must(t, err)
			pool.SetMaxOpenConns(1 + i%2)
			stand(ctx, t, pool, key, ended, func(ctx context.Context, term *elect.Term) error {
				terms <- term
				return follow(ctx, term)
			})
		}
		for range 8 {
			(<-terms).Resign()
		}
		cancel()
		for range 4 {
			wants(t, "Run", <-ended, context.Canceled)
		}
	})
}
