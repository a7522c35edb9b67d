//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestMinority cuts a node off from the others, while its clients reach it. They lose their
// leases before others are granted them, are granted nothing more, and nothing that they
// commit is acknowledged, nor there in the end. Each call ends with its context, and a COMMIT
// with the readTimeout at the latest. Once the node is connected again, they go on. A Group
// Replication is tried without and with a limit for those who wait for a majority.
func TestMinority(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		if nodes[0].Engine() == testdb.MariaDB {
			minority(t, nodes)
			return
		}
		for _, limit := range []int{0, 6} { // 0, the default, is none
			t.Run(fmt.Sprintf("limit %d s", limit), func(t *testing.T) {
				set := func(seconds int) {
					if _, err := load.Administrator(t, nodes[2], callLimit).Exec(fmt.Sprintf("SET GLOBAL group_replication_unreachable_majority_timeout = %d", seconds)); err != nil {
						t.Fatal(err)
					}
				}
				set(limit)
				minority(t, nodes)
				set(0)
			})
		}
	})
}

// minority is the test, of the last node.
func minority(t *testing.T, nodes []*testdb.Server) {
	t.Helper()
	db := nodes[0].Open(t)
	db.Exec(t, "CREATE TABLE work (who VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
	db.Grant(t, "work")
	load.MayAskTheGroup(t, db)
	most := load.NewClient(t, 0, caughtUpConfig(t, db, nodes[0]))
	few := load.NewClient(t, 2, caughtUpConfig(t, db, nodes[2]))
	job, lock := txlock.Named("job"), txlock.Named("lock")
	work := func(ctx context.Context, c *load.Client, who string) error {
		return locksqlc.Run(ctx, c.DB, []txlock.Key{lock}, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?, 1)", who)
			return err
		})
	}
	// A guarded pool knows of the view, and the keys have rows.
	soon(t, "work before", func(ctx context.Context) error { return work(ctx, few, "before") })
	var before *lease.Lease
	soon(t, "Acquire before", func(ctx context.Context) (err error) {
		before, err = few.Leases.Acquire(ctx, job)
		return err
	})
	caughtUp(t, db)

	part(t, nodes[2])
	var told []*toldCall
	for _, call := range []*toldCall{
		{what: "Run", commits: true, call: func(ctx context.Context) error { return work(ctx, few, "few") }},
		{what: "Acquire of what is free", call: func(ctx context.Context) error { return acquired(few.Leases.Acquire(ctx, txlock.Named("free"))) }},
		{what: "TryAcquire of what is free", call: func(ctx context.Context) error {
			return acquired(few.Leases.TryAcquire(ctx, txlock.Named("another")))
		}},
		{what: "Acquire of what is held", call: func(ctx context.Context) error { return acquired(few.Leases.Acquire(ctx, job)) }},
		{what: "Once", commits: true, call: func(ctx context.Context) error {
			_, err := locksqlc.Once(ctx, few.DB, txlock.Named("once"), func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO work VALUES ('once', 1)")
				return err
			})
			return err
		}},
	} {
		told = append(told, call.start(t))
	}
	var after *lease.Lease
	soon(t, "Acquire by a client of the majority", func(ctx context.Context) (err error) {
		after, err = most.Leases.Acquire(ctx, job, lease.TTL(10*time.Minute)) // the majority may take long to take the node in again
		return err
	})
	wants(t, "held by two: the lease of the minority", before.Err(), txlock.ErrLost)
	if after.Token() <= before.Token() {
		t.Errorf("token %d after %d", after.Token(), before.Token())
	}
	soon(t, "work in the majority", func(ctx context.Context) error { return work(ctx, most, "most") })
	for _, call := range told {
		call.end(t)
	}
	late := (&toldCall{what: "Run of one who is put out", commits: true, call: func(ctx context.Context) error { return work(ctx, few, "late") }}).start(t)
	late.end(t)
	late = (&toldCall{what: "Acquire of one who is put out", call: func(ctx context.Context) error {
		return acquired(few.Leases.Acquire(ctx, txlock.Named("late")))
	}}).start(t)
	late.end(t)

	heal(t, nodes[2])
	caughtUp(t, db.At(t, nodes[2])) // joins again
	for i, node := range nodes {
		caughtUp(t, db.At(t, node))
		leasetest.Equal(t, fmt.Sprintf("whose work node %d has", i), workers(t, db.At(t, node)), "before,most")
	}
	wants(t, "the lease of the majority", after.Err(), nil)
	wants(t, "Release", after.Release(t.Context()), nil)
	soon(t, "work afterwards", func(ctx context.Context) error { return work(ctx, few, "afterwards") })
	for _, name := range []string{"job", "free", "another", "late"} {
		soon(t, "Acquire afterwards of "+name, func(ctx context.Context) error {
			l, err := few.Leases.Acquire(ctx, txlock.Named(name))
			if err != nil {
				return err
			}
			if name == "job" && l.Token() <= after.Token() {
				t.Errorf("token %d after %d", l.Token(), after.Token())
			}
			return l.Release(ctx)
		})
	}
}

// acquired releases what was granted, which is told by a nil error.
func acquired(l *lease.Lease, err error) error {
	if err == nil {
		_ = l.Release(context.Background())
	}
	return err
}

// soon makes a call that must succeed within a minute. What is lost to a connection of before
// is made again.
func soon(t *testing.T, what string, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := call(ctx)
	for err != nil && ctx.Err() == nil {
		t.Logf("%s: %v", what, err)
		time.Sleep(100 * time.Millisecond)
		err = call(ctx)
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// toldCall is a call of a client of the minority.
type toldCall struct {
	what    string
	commits bool // by a COMMIT of database/sql, which ends with the connection, not with its context
	call    func(ctx context.Context) error
	err     error
	took    time.Duration
	ended   chan struct{}
}

// start makes the call in the background.
func (c *toldCall) start(t *testing.T) *toldCall {
	t.Helper()
	c.ended = make(chan struct{})
	go func() {
		defer close(c.ended)
		ctx, cancel := context.WithTimeout(t.Context(), callLimit)
		defer cancel()
		begun := time.Now()
		c.err = c.call(ctx)
		c.took = time.Since(begun)
	}()
	return c
}

// end says what the client was told: an error, which doesn't say that the work may be done
// again where nobody knows what has become of it, at the latest when the context has ended.
func (c *toldCall) end(t *testing.T) {
	t.Helper()
	<-c.ended
	t.Logf("%s: after %v: %v", c.what, c.took, c.err)
	if c.err == nil {
		t.Errorf("%s succeeds in the minority", c.what)
	}
	if txlock.Retryable(c.err) {
		t.Errorf("%s: %v is Retryable", c.what, c.err)
	}
	limit := callLimit
	if c.commits {
		limit += 2 * callLimit // the readTimeout of load.NewClient
	}
	if c.took > limit+5*time.Second {
		t.Errorf("%s ends after %v, want at most %v", c.what, c.took, limit)
	}
}
