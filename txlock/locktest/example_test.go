package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// TestLost is the test that the documentation of the package shows.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := locktest.NewMemory()
		defer memory.DB().Close()
		leases, err := lease.NewManager(memory.DB())
		if err != nil {
			t.Fatal(err)
		}
		defer leases.Close(context.Background()) //nolint:errcheck // in the documentation it is short

		l, err := leases.Acquire(t.Context(), txlock.Named("job"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // it is renewed
		if !l.Valid() {
			t.Error(l.Err())
		}
		memory.Disconnect()
		<-l.Done()
		if !errors.Is(l.Err(), txlock.ErrLost) {
			t.Error(l.Err())
		}
	})
}

func ExampleMemory_DB() {
	ctx := context.Background()
	memory := locktest.NewMemory()
	db := memory.DB()
	leases, err := lease.NewManager(db)
	if err != nil {
		log.Fatal(err)
	}
	err = leases.Do(ctx, txlock.Named("report"), func(ctx context.Context, l *lease.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := l.Guard(ctx, tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		_, err = leases.TryAcquire(context.Background(), txlock.Named("report")) // by somebody else
		fmt.Println(errors.Is(err, txlock.ErrBusy))
		return tx.Commit()
	})
	fmt.Println(errors.Join(err, leases.Close(ctx), db.Close()))
	// Output:
	// true
	// <nil>
}

func ExampleMemory_Disconnect() {
	ctx := context.Background()
	memories := []*locktest.Memory{locktest.NewMemory(), locktest.NewMemory(), locktest.NewMemory()}
	var managers []*lease.Manager
	for _, memory := range memories {
		m, err := lease.NewManager(memory.DB())
		if err != nil {
			log.Fatal(err)
		}
		managers = append(managers, m)
	}
	leases, err := quorum.New(managers)
	if err != nil {
		log.Fatal(err)
	}
	if err := leases.Install(ctx); err != nil {
		log.Fatal(err)
	}
	for _, memory := range memories[1:] {
		memory.Disconnect()
		_, err := leases.Acquire(ctx, txlock.Named("job"))
		fmt.Println(errors.Is(err, txlock.ErrNoQuorum))
	}
	for _, memory := range memories {
		memory.Reconnect()
	}
	err = leases.Close(ctx)
	for i, memory := range memories {
		err = errors.Join(err, managers[i].Close(ctx), memory.DB().Close())
	}
	fmt.Println(err)
	// Output:
	// false
	// true
	// <nil>
}
