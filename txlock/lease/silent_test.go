package lease_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// standstills are the ways in which a server stands still: its process, as where the network
// delivers nothing for a while, and its writes, as for a backup. They return what ends it.
var standstills = map[string]func(t *testing.T, db *testdb.DB) (goOn func() error){
	"stopped": func(t *testing.T, db *testdb.DB) func() error {
		t.Helper()
		must(t, db.Server().Signal(syscall.SIGSTOP))
		return func() error { return db.Server().Signal(syscall.SIGCONT) }
	},
	"read lock": func(t *testing.T, db *testdb.DB) func() error {
		t.Helper()
		backup, err := db.Admin().Conn(t.Context())
		must(t, err)
		_, err = backup.ExecContext(t.Context(), "FLUSH TABLES WITH READ LOCK")
		must(t, err)
		return func() error {
			_, err := backup.ExecContext(context.Background(), "UNLOCK TABLES")
			return errors.Join(err, backup.Close())
		}
	},
}

// TestWaitSurvivesAStandstill proves that waits without a limit outlast a server that stands
// still for longer than several attempts may take, leave few sessions on it and nothing that
// is held; and that a try and a wait with a limit say that it has not answered.
func TestWaitSurvivesAStandstill(t *testing.T) {
	t.Parallel()
	const ttl, lasts = 600 * time.Millisecond, 6 * time.Second
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Dedicated(t, engine).OpenLeases(t)
			for name, stand := range standstills {
				t.Run(name, func(t *testing.T) {
					m := newManager(t, newPool(t, db, true), lease.TTL(ttl))
					keys := make(map[string]txlock.Key)
					for what, wait := range waitsWithoutLimit {
						keys[what] = named()
						wantsGranted(t, what, wait(t.Context(), m, keys[what])) // so that there are rows
					}
					tried, limited := named(), named() // of one key, one would find its row locked by the other
					for _, key := range []txlock.Key{tried, limited} {
						wantsGranted(t, "Acquire", acquired(m.Acquire(t.Context(), key)))
					}
					goOn := stand(t, db)
					over := sync.OnceFunc(func() {
						if err := goOn(); err != nil {
							t.Error(err)
						}
					})
					defer over()
					var waiting sync.WaitGroup
					for what, wait := range waitsWithoutLimit {
						waiting.Go(func() { wantsGranted(t, what, wait(t.Context(), m, keys[what])) })
					}
					for what, call := range map[string]func() error{
						"a try": func() error { return acquired(m.TryAcquire(t.Context(), tried)) },
						"a limit": func() error {
							return acquired(m.Acquire(t.Context(), limited, lease.WaitAtMost(time.Second)))
						},
					} {
						waiting.Go(func() {
							err := call()
							wants(t, what, err, txlock.ErrWaitTimeout)
							// Its own first statement may have the row locked by then.
							if err != nil && !strings.Contains(err.Error(), "the server has not answered for ") && !strings.Contains(err.Error(), "its row was locked") {
								t.Errorf("%s: %v", what, err)
							}
						})
					}
					time.Sleep(lasts)
					if name == "read lock" { // who is stopped has no answer
						n := sessions(t, db)
						t.Logf("%d sessions of %d waits", n, len(keys))
						if n > int64(6*len(keys)) {
							t.Error("too many sessions")
						}
					}
					over()
					waiting.Wait()
					if !testdb.Await(time.Minute, func() bool {
						all, err := m.List(t.Context())
						return err == nil && len(all) == 0
					}) {
						t.Error("something is held")
					}
				})
			}
		})
	}
}

// wantsGranted checks that a call was granted what it has waited for. On a busy machine that
// may be over before its release.
func wantsGranted(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, txlock.ErrNotHeld) && !errors.Is(err, txlock.ErrLost) {
		t.Errorf("%s: %v", what, err)
	}
}
