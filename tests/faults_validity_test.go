package tests

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestHolderIsToldFirst proves that a holder whose server can't be reached, or doesn't
// answer, is told that its lease is lost before anybody else gets it:
// by Err at every moment, by Done and Context soon after.
func TestHolderIsToldFirst(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, begin := range map[string]func(n network, t testing.TB){"unreachable": network.down, "hung": network.hang} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				n := newNetwork(t, db)
				holder := faultManager(t, faultPool(t, db, n, guarded), lease.TTL(holderTTL))
				other := faultManager(t, faultPool(t, db, network{}, guarded))
				key := txlock.Named("validity:" + rand.Text())
				l, err := holder.Acquire(t.Context(), key)
				fatal(t, err)
				awaitRenewal(t, db, key)
				working, cancel := l.Context(t.Context())
				defer cancel()
				lastValid := make(chan time.Time, 1)
				go func() {
					asked := time.Now()
					for valid := asked; ; valid = asked {
						if asked = time.Now(); l.Err() != nil {
							lastValid <- valid
							return
						}
						time.Sleep(10 * time.Microsecond)
					}
				}()
				begin(n, t)
				ctx, timeout := context.WithTimeout(t.Context(), time.Minute)
				defer timeout()
				next, err := acquirePatiently(ctx, other, key)
				granted := time.Now()
				fatal(t, err)
				last := <-lastValid
				t.Logf("valid until %v before the next grant", granted.Sub(last).Round(time.Microsecond))
				if !last.Before(granted) {
					t.Errorf("valid %v after somebody else was granted the lease", last.Sub(granted))
				}
				if next.Token() <= l.Token() {
					t.Errorf("token %d after %d", next.Token(), l.Token())
				}
				for what, done := range map[string]<-chan struct{}{"Done": l.Done(), "Context": working.Done()} {
					select {
					case <-done:
					case <-time.After(5 * time.Second):
						t.Errorf("%s does not end", what)
					}
				}
				for what, err := range map[string]error{"Err": l.Err(), "cause": context.Cause(working)} {
					if !errors.Is(err, txlock.ErrLost) || !strings.Contains(err.Error(), "its TTL expired and it was not renewed") {
						t.Errorf("%s: %v, want ErrLost and why", what, err)
					}
				}
			})
		}
	}
}

const holderTTL = 6 * time.Second

// awaitRenewal waits until the lease was renewed once.
func awaitRenewal(t *testing.T, db *testdb.DB, key txlock.Key) {
	t.Helper()
	const expiry = "SELECT expires_us FROM lockstep_leases WHERE name = ?"
	before := count(t, db, expiry, key.String())
	if !testdb.Await(time.Minute, func() bool { return count(t, db, expiry, key.String()) > before }) {
		t.Fatal("the lease is not renewed")
	}
}

// acquirePatiently waits over errors of a server that doesn't answer.
func acquirePatiently(ctx context.Context, m *lease.Manager, key txlock.Key) (l *lease.Lease, err error) {
	for ctx.Err() == nil {
		if l, err = m.Acquire(ctx, key); err == nil {
			return l, nil
		}
	}
	return nil, err
}
