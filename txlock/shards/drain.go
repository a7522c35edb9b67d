package shards

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

const (
	drainPause = 500 * time.Millisecond // between two looks
	leasePage  = 1000
)

// drain waits until no lease of a key that moves is held, and until all transactions have
// ended that may hold a lock, or guard a lease. Such a transaction may have acquired a lease,
// which is seen when it is committed.
func (s *shard) drain(ctx context.Context, moves func(key txlock.Key) bool) error {
	for ended := false; ; {
		held, err := s.heldLease(ctx, moves)
		switch {
		case err != nil:
			return fault.Explain("list leases", err)
		case held != nil:
			ended = false
			if err := leaseutil.Pause(ctx, drainPause, nil); err != nil {
				return fmt.Errorf("wait for lease %q, which %q holds: %w", fault.Clipped(string(held.Name)), held.Owner, err)
			}
		case ended:
			return nil
		default:
			for _, table := range []string{"lockstep_locks", "lockstep_centers", "lockstep_leases", "lockstep_once"} {
				if err := s.awaitTransactions(ctx, table); err != nil {
					return fault.Explain("wait for transactions that have used "+table, err)
				}
			}
			ended = true
		}
	}
}

// heldLease returns a lease that is held of a key that moves, or nil.
func (s *shard) heldLease(ctx context.Context, moves func(key txlock.Key) bool) (*gen.ListLeasesRow, error) {
	next := gen.ListLeasesParams{After: []byte{}, AfterSlot: math.MinInt64, Limit: leasePage}
	for {
		rows, err := queries.ListLeases(ctx, rawsql.Scanning(s.db), next)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			if moves(txlock.ParseKey(string(row.Name))) {
				return &row, nil
			}
		}
		if len(rows) < leasePage {
			return nil, nil
		}
		next.After, next.AfterSlot = rows[leasePage-1].Name, rows[leasePage-1].Slot
	}
}

// awaitTransactions waits for the transactions that have used a table: the server lets
// nobody lock the table before they have ended, also those that only wait for a row. Others
// queue behind that lock, so each attempt is short. The connection isn't used again.
func (s *shard) awaitTransactions(ctx context.Context, table string) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
	}()
	if _, err := conn.ExecContext(ctx, rawsql.SetTableWait); err != nil {
		return err
	}
	for {
		_, err := conn.ExecContext(ctx, rawsql.LockTable(table))
		if !errors.Is(fault.Interpret(err).Sentinel, txlock.ErrWaitTimeout) {
			return err
		}
		if err := leaseutil.Pause(ctx, drainPause, nil); err != nil {
			return err
		}
	}
}
