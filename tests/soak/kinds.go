package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// kind is a way to use the library. Each burst lets several at once ask for the same.
type kind struct {
	name     string
	every    time.Duration // between two bursts
	burst    int
	run      func(ctx context.Context, o *op) error
	expected []error // that are no failures
}

// control is the kind that uses no lock: how long it takes shows what the machine does.
const control = "no lock"

// opLimit bounds an operation.
const opLimit = time.Minute

const (
	often  = 8 * time.Second
	seldom = 20 * time.Second
)

// kinds are all kinds.
func kinds() []kind {
	return slices.Concat([]kind{{name: control, every: often, burst: 3, run: own}}, lockKinds(), gormKinds(), leaseKinds(), tickKinds())
}

// op is an operation.
type op struct {
	*client
	kind   string
	burst  int64 // the same of all that ask at once
	index  int   // among these
	began  time.Time
	waited time.Duration
	wrote  []string
}

// granted notes that the operation has waited until now.
func (o *op) granted() { o.waited = time.Since(o.began) }

// name is that of a record, which others of the burst want, too, and the key of its lock.
func (o *op) name() string { return recordName(o.kind, int(o.burst%records)) }

// key is the key of the record.
func (o *op) key() txlock.Key { return txlock.Named(o.name()) }

// records is how many records each kind has.
const records = 3

func recordName(kind string, i int) string { return fmt.Sprintf("%s/%d", kind, i) }

// think takes a moment.
func think(most time.Duration) { time.Sleep(time.Duration(rand.Int64N(int64(most)))) }

// queryer is a *sql.Tx.
type queryer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// raise reads the record and writes it: without a lock, updates are lost.
func (o *op) raise(ctx context.Context, tx queryer) error { return o.raiseNamed(ctx, tx, o.name()) }

func (o *op) raiseNamed(ctx context.Context, tx queryer, name string) error {
	var value int64
	if err := tx.QueryRowContext(ctx, "SELECT value FROM counters WHERE name = ?", name).Scan(&value); err != nil {
		return err
	}
	think(5 * time.Millisecond)
	if _, err := tx.ExecContext(ctx, "UPDATE counters SET value = ? WHERE name = ?", value+1, name); err != nil {
		return err
	}
	o.wrote = append(o.wrote, name)
	return nil
}

// again begins another try, whose predecessor was rolled back.
func (o *op) again() {
	o.granted()
	o.wrote = nil
}

// own is a transaction on a row that only few share.
func own(ctx context.Context, o *op) error {
	tx, err := o.plain.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "UPDATE own SET value = value + 1 WHERE id = ?", o.number)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	err = tx.Commit()
	o.granted()
	return err
}

// isExpected tells whether a kind may return an error.
func (k *kind) isExpected(err error) bool {
	return slices.ContainsFunc(k.expected, func(e error) bool { return errors.Is(err, e) })
}
