package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/examples/sqlcorders/ordersdb"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// eachEngine runs a test on every engine, in a database of its own.
func eachEngine(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Helper()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			database, err := scratch.New(t.Context(), testdb.Shared(t, engine).Config().FormatDSN(), ddl)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { check(t, database.Drop()) })
			test(t, database.DSN())
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newServer returns a service on a pool of its own, as another process has it.
func newServer(t *testing.T, dsn string, open func(dsn string) (*sql.DB, error)) *Service {
	t.Helper()
	db, err := open(dsn)
	must(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	s, err := NewService(t.Context(), db)
	must(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

func openGuarded(dsn string) (*sql.DB, error) { return locksqlc.Open(dsn) }

func openPlain(dsn string) (*sql.DB, error) { return sql.Open("mysql", dsn) }

// newShop returns a server of a shop whose customers have 100.00 each.
func newShop(t *testing.T, dsn string) *Service {
	t.Helper()
	s := newServer(t, dsn, openGuarded)
	for _, account := range []ordersdb.AddAccountParams{{ID: till, Owner: "till"}, {ID: alice, Owner: "alice", Balance: 100_00}, {ID: bob, Owner: "bob", Balance: 100_00}} {
		must(t, s.queries.AddAccount(t.Context(), account))
	}
	return s
}

// expect compares the balances.
func (s *Service) expect(t *testing.T, ofTill, ofAlice, ofBob int64) {
	t.Helper()
	for id, want := range map[int64]int64{till: ofTill, alice: ofAlice, bob: ofBob} {
		got, err := s.queries.Balance(t.Context(), id)
		must(t, err)
		if got != want {
			t.Errorf("account %d has %d, want %d", id, got, want)
		}
	}
}

// begin begins a transaction, which is rolled back at the end of the test.
func (s *Service) begin(t *testing.T) *sql.Tx {
	t.Helper()
	tx, err := s.db.BeginTx(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() }) // over already, where the test went well
	return tx
}

func TestExample(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			dsn := testdb.Shared(t, engine).Config().FormatDSN()
			var out bytes.Buffer
			err := start(t.Context(), func(name string) string {
				if name == engine.DSNVariable() {
					return dsn
				}
				return ""
			}, &out)
			must(t, err)
			for _, want := range []string{
				"alice 115.00 bob 85.00 till 0.00\n",
				"alice 90.00 bob 85.00 till 25.00\n",
				"the bank was told once, by one of 5 servers, of 10 orders for 25.00\n",
			} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is not in the output:\n%s", want, out.String())
				}
			}
			if n := strings.Count(out.String(), "the bank was told"); n != 1 {
				t.Errorf("the bank was told %d times", n)
			}
		})
	}
}

func TestStartNeedsAServer(t *testing.T) {
	t.Parallel()
	err := start(t.Context(), func(string) string { return "" }, &bytes.Buffer{})
	if !errors.Is(err, errNoServer) {
		t.Errorf("start = %v", err)
	}
}

// The pools of several programs, guarded and plain, change the same accounts.
func TestTransfersTogether(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, dsn string) {
		servers := []*Service{newShop(t, dsn), newServer(t, dsn, openGuarded), newServer(t, dsn, openPlain)}
		err := together(60, func(i int) error {
			if i%2 == 0 {
				return servers[i%3].Transfer(t.Context(), alice, bob, 1_00)
			}
			return servers[i%3].Transfer(t.Context(), bob, alice, 1_50)
		})
		must(t, err)
		servers[0].expect(t, 0, 115_00, 85_00)
	})
}

func TestTransferThatFails(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, dsn string) {
		s := newShop(t, dsn)
		if err := s.Transfer(t.Context(), alice, bob, 100_01); !errors.Is(err, ErrTooPoor) {
			t.Errorf("Transfer of too much = %v, want ErrTooPoor", err)
		}
		if err := s.Transfer(t.Context(), alice, 99, 1); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("Transfer to nobody = %v, want sql.ErrNoRows", err)
		}
		if err := s.Transfer(t.Context(), alice, 0, 1); !errors.Is(err, txlock.ErrInvalidKey) {
			t.Errorf("Transfer to the zero account = %v, want ErrInvalidKey", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Transfer(ended, alice, bob, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("Transfer under an ended context = %v, want context.Canceled", err)
		}
		s.expect(t, 0, 100_00, 100_00)
	})
}

func TestBuyIsOneTransaction(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, dsn string) {
		s := newShop(t, dsn)
		if _, err := s.Buy(t.Context(), alice, 100_01); !errors.Is(err, ErrTooPoor) {
			t.Fatalf("Buy = %v, want ErrTooPoor", err)
		}
		order, err := s.Buy(t.Context(), alice, 40_00)
		must(t, err)
		paid, err := s.queries.PaidOrders(t.Context())
		must(t, err)
		if len(paid) != 1 || paid[0].ID != order || paid[0].Amount != 40_00 {
			t.Errorf("paid orders: %v", paid)
		}
		s.expect(t, 40_00, 60_00, 100_00)
	})
}

func TestPayTxJoinsTheCallersTransaction(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, dsn string) {
		s, other := newShop(t, dsn), newServer(t, dsn, openGuarded)
		order, err := s.queries.AddOrder(t.Context(), ordersdb.AddOrderParams{AccountID: alice, Amount: 5_00})
		must(t, err)

		tx := s.begin(t)
		must(t, s.PayTx(t.Context(), tx, order, alice))
		scope, err := locksqlc.Join(t.Context(), other.begin(t))
		must(t, err)
		if _, err := scope.TryLock(t.Context(), orders.Key(order)); !errors.Is(err, txlock.ErrBusy) {
			t.Errorf("TryLock of the order while it is paid = %v, want ErrBusy", err)
		}
		must(t, tx.Rollback()) // the caller's business, not that of PayTx
		if _, err := scope.TryLock(t.Context(), orders.Key(order)); err != nil {
			t.Errorf("TryLock after the rollback = %v", err)
		}
		s.expect(t, 0, 100_00, 100_00)

		if err := s.PayTx(t.Context(), tx, order, alice); !errors.Is(err, txlock.ErrNoTransaction) {
			t.Errorf("PayTx in a transaction that is over = %v, want ErrNoTransaction", err)
		}
	})
}

func TestPayTxPaysOnce(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, dsn string) {
		s := newShop(t, dsn)
		order, err := s.queries.AddOrder(t.Context(), ordersdb.AddOrderParams{AccountID: alice, Amount: 5_00})
		must(t, err)
		pay := func() error {
			return locksqlc.Run(t.Context(), s.db, accounts.Keys(alice, till), func(tx *sql.Tx) error {
				return s.PayTx(t.Context(), tx, order, alice)
			})
		}
		errs := make([]error, 10)
		must(t, together(len(errs), func(i int) error { errs[i] = pay(); return nil }))
		paid := 0
		for _, err := range errs {
			if err == nil {
				paid++
			} else if !errors.Is(err, ErrNotOpen) {
				t.Errorf("PayTx = %v, want ErrNotOpen", err)
			}
		}
		if paid != 1 {
			t.Errorf("the order was paid %d times", paid)
		}
		s.expect(t, 5_00, 95_00, 100_00)
	})
}

// What PayTx reads after a lock can't be older than the lock.
func TestPayTxAfterAnOldRead(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, dsn string) {
		s := newShop(t, dsn)
		order, err := s.queries.AddOrder(t.Context(), ordersdb.AddOrderParams{AccountID: alice, Amount: 100_00})
		must(t, err)
		must(t, s.Transfer(t.Context(), bob, alice, 1)) // so that the keys have their rows

		tx := s.begin(t)
		_, err = s.queries.WithTx(tx).Balance(t.Context(), alice)
		must(t, err)
		must(t, s.Transfer(t.Context(), alice, bob, 50_00))
		err = s.PayTx(t.Context(), tx, order, alice)
		if !errors.Is(err, txlock.ErrStaleSnapshot) || !txlock.Retryable(err) {
			t.Errorf("PayTx = %v, want ErrStaleSnapshot", err)
		}
		must(t, tx.Rollback())
		s.expect(t, 0, 50_01, 149_99)
	})
}

// recordingBank is a bank that notes what it is sent, and complains where two send
// at the same time.
type recordingBank struct {
	sending atomic.Int32
	batches [][]ordersdb.Order
	err     error
}

func (b *recordingBank) Send(_ context.Context, paid []ordersdb.Order) error {
	defer b.sending.Add(-1)
	if b.sending.Add(1) > 1 {
		return errors.New("two send at the same time")
	}
	if b.err != nil {
		return b.err
	}
	b.batches = append(b.batches, paid)
	return nil
}

func TestSettleOncePerCluster(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, dsn string) {
		servers := []*Service{newShop(t, dsn), newServer(t, dsn, openGuarded), newServer(t, dsn, openPlain)}
		for range 5 {
			_, err := servers[0].Buy(t.Context(), alice, 1_00)
			must(t, err)
		}
		down := errors.New("the bank is down")
		b := &recordingBank{err: down}
		if _, err := servers[0].Settle(t.Context(), b); !errors.Is(err, down) {
			t.Errorf("Settle = %v, want the bank's error", err)
		}

		b.err = nil
		settled := make([]int, 9)
		err := together(len(settled), func(i int) error {
			var err error
			settled[i], err = servers[i%3].Settle(t.Context(), b)
			return err
		})
		must(t, err)
		sum := 0
		for _, n := range settled {
			sum += n
		}
		if sum != 5 || len(b.batches) != 1 || len(b.batches[0]) != 5 {
			t.Errorf("settled %v, the bank has %d batches", settled, len(b.batches))
		}
		if n, err := servers[1].Settle(t.Context(), b); n != 0 || err != nil {
			t.Errorf("Settle with nothing to do = %d, %v", n, err)
		}
	})
}
