// Command handover takes the hand-over of one hot key apart: the same transaction with less
// and less of lockstep in it, down to the bare upsert, interleaved. It prints, for the server
// of LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN, the medians of the rounds. bench/NOTES.md has
// what came of it.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/bench/stats"
	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

const (
	bare = `INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) VALUES (X'686f74', 1, 'me', CONNECTION_ID(), 0)
		ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token + 1), owner = VALUES(owner), conn_id = CONNECTION_ID()`
	work     = "UPDATE handover_stock SET n = n + 1 WHERE id = 1"
	database = "lockstep_handover"
)

var hot = txlock.Named("hot")

// steps are told by a transaction when it has been granted the key, and before it sends
// COMMIT.
type steps struct{ granted, freed func() }

// transact is one transaction under the key.
type transact func(ctx context.Context, s steps) error

// worker is one of those who want the key. What it has of its own is closed at the end.
type worker struct {
	transact
	own []io.Closer
}

type variant struct {
	name string
	open func(ctx context.Context) (worker, error)
}

func main() {
	workers := flag.Int("workers", 8, "how many want the key")
	rounds := flag.Int("rounds", 4, "of each variant, after one that doesn't count")
	slice := flag.Duration("slice", time.Second, "how long a round of one variant is")
	flag.Parse()
	for _, engine := range []string{"MARIADB", "MYSQL"} {
		dsn := os.Getenv("LOCKSTEP_" + engine + "_DSN")
		if dsn == "" {
			continue
		}
		if err := measure(context.Background(), engine, dsn, *workers, *rounds, *slice); err != nil {
			fmt.Fprintln(os.Stderr, "handover:", err)
			os.Exit(1)
		}
	}
}

func measure(ctx context.Context, engine, dsn string, workers, rounds int, slice time.Duration) (err error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	cfg.InterpolateParams = true
	admin, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		return err
	}
	defer func() {
		_, dropped := admin.ExecContext(ctx, "DROP DATABASE IF EXISTS "+database)
		err = errors.Join(err, dropped, admin.Close())
	}()
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS "+database); err != nil {
		return err
	}
	cfg.DBName = database
	plain, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		return err
	}
	guarded, err := locksqlc.Open(cfg.FormatDSN())
	if err != nil {
		return errors.Join(err, plain.Close())
	}
	defer func() { err = errors.Join(err, plain.Close(), guarded.Close()) }()
	for _, pool := range []*sql.DB{plain, guarded} {
		pool.SetMaxIdleConns(workers)
	}
	if err := schema.Install(ctx, plain); err != nil {
		return err
	}
	for _, query := range []string{"CREATE TABLE handover_stock (id INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO handover_stock VALUES (1, 0)"} {
		if _, err := plain.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	variants := variantsOf(engine == "MARIADB", plain, guarded)
	handOvers, perSecond := map[string][]float64{}, map[string][]float64{}
	for round := range rounds + 1 {
		for _, i := range stats.Turns(round, len(variants)) {
			v := variants[i]
			spans, err := crowd(ctx, v, workers, slice)
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			if round > 0 { // the first warms up
				handOvers[v.name] = append(handOvers[v.name], stats.Percentile(between(spans), 50))
				perSecond[v.name] = append(perSecond[v.name], float64(len(spans))/slice.Seconds())
			}
		}
	}
	base, most := stats.Percentile(handOvers[variants[0].name], 50), stats.Percentile(perSecond[variants[0].name], 50)
	fmt.Printf("%s, %d workers\n", engine, workers)
	for _, v := range variants {
		h, t := stats.Percentile(handOvers[v.name], 50), stats.Percentile(perSecond[v.name], 50)
		fmt.Printf("  %-48s %4.0f us, %.2f   %5.0f a second, %.2f\n", v.name, h, h/base, t, t/most)
	}
	return nil
}

func variantsOf(mariaDB bool, plain, guarded *sql.DB) []variant {
	named := rawsql.Statement{Query: gen.LockNamed, Args: []any{"hot", "me", 1}} // name, owner, held
	lock, _ := named.Text()
	all := []variant{
		{"the bare upsert in a sql.Tx", inTx(plain, bare)},
		{"the bare upsert on a sql.Conn", onConn(plain, "START TRANSACTION", bare)},
		{"the bare upsert in a sql.Tx of a guarded pool", inTx(guarded, bare)},
		{"LockNamed on a sql.Conn", onConn(plain, "START TRANSACTION", lock)},
	}
	if mariaDB {
		both, _ := rawsql.MariaDB.Open(rawsql.Begin{}, named, true)
		text, _ := both.Text()
		all = append(all,
			variant{"LockNamed with BEGIN, as text, on a sql.Conn", onConn(plain, text)},
			variant{"the same, prepared", prepared(plain, text)})
	} else {
		both, _ := rawsql.MySQL.Open(rawsql.Begin{}, rawsql.Statement{Procedure: rawsql.LockProcedure, Args: []any{"hot", nil, "me", 1}}, true)
		call, _ := both.Text()
		all = append(all, variant{"the procedure with BEGIN, on a sql.Conn", onConn(plain, call)})
	}
	return append(all, variant{"Run", func(context.Context) (worker, error) {
		return worker{transact: func(ctx context.Context, s steps) error {
			return locksqlc.Run(ctx, guarded, []txlock.Key{hot}, func(tx *sql.Tx) error {
				s.granted()
				_, err := tx.ExecContext(ctx, work)
				s.freed()
				return err
			})
		}}, nil
	}})
}

// inTx is BEGIN, the lock, the work and COMMIT.
func inTx(pool *sql.DB, lock string) func(context.Context) (worker, error) {
	return func(context.Context) (worker, error) {
		return worker{transact: func(ctx context.Context, s steps) error {
			tx, err := pool.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if _, err = tx.ExecContext(ctx, lock); err == nil {
				s.granted()
				_, err = tx.ExecContext(ctx, work)
			}
			s.freed()
			if err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		}}, nil
	}
}

// onConn sends statements, of which the last locks, the work and COMMIT.
func onConn(pool *sql.DB, lock ...string) func(context.Context) (worker, error) {
	return func(ctx context.Context) (worker, error) {
		conn, err := pool.Conn(ctx)
		if err != nil {
			return worker{}, err
		}
		return worker{onConnection(conn, func(ctx context.Context) error {
			for _, statement := range lock {
				if err := drain(conn.QueryContext(ctx, statement)); err != nil {
					return err
				}
			}
			return nil
		}), []io.Closer{conn}}, nil
	}
}

// prepared is onConn with one prepared statement.
func prepared(pool *sql.DB, lock string) func(context.Context) (worker, error) {
	return func(ctx context.Context) (worker, error) {
		conn, err := pool.Conn(ctx)
		if err != nil {
			return worker{}, err
		}
		statement, err := conn.PrepareContext(ctx, lock) //nolint:sqlclosecheck // it is one of what the worker closes
		if err != nil {
			return worker{}, errors.Join(err, conn.Close())
		}
		return worker{onConnection(conn, func(ctx context.Context) error { return drain(statement.QueryContext(ctx)) }), []io.Closer{statement, conn}}, nil
	}
}

func onConnection(conn *sql.Conn, lock func(ctx context.Context) error) transact {
	return func(ctx context.Context, s steps) error {
		if err := lock(ctx); err != nil {
			return err
		}
		s.granted()
		_, err := conn.ExecContext(ctx, work)
		s.freed()
		if err == nil {
			_, err = conn.ExecContext(ctx, "COMMIT")
		}
		return err
	}
}

// drain reads rows to their end.
func drain(rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	for rows.Next() {
	}
	return errors.Join(rows.Err(), rows.Close())
}

type span struct{ asked, granted, freed time.Time }

// crowd lets workers take the key again and again.
func crowd(ctx context.Context, v variant, workers int, slice time.Duration) (all []span, err error) {
	var running sync.WaitGroup
	var mu sync.Mutex
	end := time.Now().Add(slice)
	for range workers {
		w, failed := v.open(ctx)
		running.Go(func() {
			var mine []span
			for failed == nil && time.Now().Before(end) {
				s := span{asked: time.Now()}
				failed = w.transact(ctx, steps{func() { s.granted = time.Now() }, func() { s.freed = time.Now() }})
				mine = append(mine, s)
			}
			for _, c := range w.own {
				failed = errors.Join(failed, c.Close())
			}
			mu.Lock()
			defer mu.Unlock()
			all, err = append(all, mine...), errors.Join(err, failed)
		})
	}
	running.Wait()
	return all, err
}

// between returns the hand-overs in microseconds: from COMMIT to the grant of one who was
// waiting then.
func between(spans []span) (us []float64) {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.granted.UnixNano(), b.granted.UnixNano()) })
	for i, s := range spans[1:] {
		if freed := spans[i].freed; s.asked.Before(freed) {
			us = append(us, float64(s.granted.Sub(freed).Nanoseconds())/1000)
		}
	}
	return us
}
