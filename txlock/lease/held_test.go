package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// heldBy returns who holds the lease as an error says, nil for nobody.
func heldBy(err error) *txlock.HeldError {
	var held *txlock.HeldError
	errors.As(err, &held)
	return held
}

// namesHolder demands that an error names the holder of a key: by the owner, its label, and when it
// was granted by the server's clock.
func namesHolder(t *testing.T, what string, err error, key txlock.Key, info lease.Info) {
	t.Helper()
	want := txlock.HeldError{Key: key, Owner: info.Owner, Label: info.Label, Since: info.Since}
	if held := heldBy(err); held == nil || *held != want {
		t.Errorf("%s: %v has %+v, want %+v", what, err, held, want)
	} else if !strings.Contains(err.Error(), held.Error()) {
		t.Errorf("%s: the text is %v", what, err)
	}
}

// infoOf returns what Inspect shows of a lease that is held.
func infoOf(t *testing.T, l *lease.Lease, m *lease.Manager) lease.Info {
	t.Helper()
	info := inspect(t, m, l.Key())
	for _, held := range append(info.Others, info) {
		if held.Owner == l.Owner() {
			return held
		}
	}
	t.Fatalf("%v is not held by %q", l.Key(), l.Owner())
	return lease.Info{}
}

// TestRefusalsNameTheHolder proves that a wait that ends by its limit or by its context names who was seen
// last, without a call more; that with NameHolders each refusal names the holder, reader or permit by one
// look at most; and that there is none at what is free.
func TestRefusalsNameTheHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a := db.manager(lease.WithLabel("the nightly report"))
		naming, wire := db.process(lease.NameHolders())
		plain, unnamed := db.process()
		calls := tries(wire)
		for name, wait := range waitsWithoutLimit {
			calls["limit: "+name] = func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) error {
				return wait(ctx, m, key, lease.WaitAtMost(time.Second))
			}
			calls["context: "+name] = func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) error {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				return wait(ctx, m, key)
			}
		}
		for name, call := range calls {
			for kind, hold := range map[string]verb{"lease": exclusive, "reader": shared, "permit": permitOf} {
				if strings.HasSuffix(name, "a permit") != (kind == "permit") || kind == "reader" && strings.Contains(name, "Shared") ||
					kind != "lease" && strings.HasPrefix(name, "context") { // which has ended before a look
					continue
				}
				m, of, most := naming, wire, 1
				if strings.Contains(name, ": ") && kind == "lease" {
					m, of, most = plain, unnamed, 0
				}
				what, key := name+" of a "+kind, txlock.Named(name+" of a "+kind)
				held := mustLease(t)(hold(t.Context(), a, key))
				info, looks := infoOf(t, held, a), len(of.calls("Inspect"))
				err := call(t.Context(), m, key)
				if !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrWaitTimeout) && (!errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(name, "context")) {
					t.Errorf("%s: %v", what, err)
				}
				namesHolder(t, what, err, key, info)
				time.Sleep(time.Second) // what a wait for readers has kept is released in the background
				release(t, held)
				if n := len(of.calls("Inspect")) - looks; n > most {
					t.Errorf("%s: %d looks", what, n)
				}
				looks = len(of.calls("Inspect"))
				must(t, call(t.Context(), m, key))
				equal(t, what+": looks at what is free", len(of.calls("Inspect"))-looks, 0)
			}
		}
		held := acquire(t, a, job)
		_, err := plain.TryAcquire(t.Context(), job)
		if wants(t, "TryAcquire", err, txlock.ErrBusy); heldBy(err) != nil {
			t.Errorf("named without a look: %v", err)
		}
		namesHolder(t, "one call's option", second(plain.TryAcquire(t.Context(), job, lease.NameHolders())), job, infoOf(t, held, a))
		release(t, held)
	})
}

// TestWaitsBehindOthersNameTheHolder proves that with NameHolders a wait whose turn never
// comes names who has the lease at its end, and not who had it when it queued.
func TestWaitsBehindOthersNameTheHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager(lease.WithLabel("the next"))
		first := acquire(t, a, job)
		next := fairAcquireUnder(t.Context(), b, job, lease.Fair())
		time.Sleep(time.Second)
		last := fairAcquireUnder(t.Context(), db.manager(), job, lease.Fair())
		time.Sleep(time.Second)
		time.AfterFunc(time.Second, func() { _ = first.Release(context.Background()) })
		_, err := db.manager().Acquire(t.Context(), job, lease.Fair(), lease.NameHolders(), lease.WaitAtMost(10*time.Second))
		wants(t, "behind others", err, txlock.ErrWaitTimeout)
		namesHolder(t, "behind others", err, job, infoOf(t, next.lease(t), b))
		release(t, next.lease(t))
		release(t, last.lease(t))
	})
}

// TestWaitingWriterIsNoHolder proves that a refusal for a writer that waits for a reader names the reader
// with NameHolders, to the observer too, and says without that it may be so.
func TestWaitingWriterIsNoHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, told := db.manager(), new(answers)
		info := infoOf(t, share(t, a, job), a)
		ctx, cancel := context.WithCancel(t.Context())
		waits := fairAcquireUnder(ctx, db.manager(lease.WithLabel("who waits")), job)
		time.Sleep(time.Second)
		plain, bare := db.process()
		named, wired := db.process(lease.NameHolders(), lease.Observe(told.observe))
		wires := map[*lease.Manager]*wire{plain: bare, named: wired}
		for name, try := range map[string]verb{
			"TryAcquire": tryExclusive, "TryAcquireShared": tryShared,
			"Acquire": func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
				return m.Acquire(ctx, key, append(options, lease.WaitAtMost(time.Second))...)
			},
			"AcquireShared": func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
				return m.AcquireShared(ctx, key, append(options, lease.WaitAtMost(time.Second))...)
			},
			"AcquireTx": func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
				tx := wires[m].Begin()
				defer func() { _ = tx.Rollback() }()
				return m.AcquireTx(ctx, tx, key, options...)
			},
		} {
			_, err := try(t.Context(), named, job)
			namesHolder(t, name, err, job, info)
			if held := told.refused.Held; held == nil || held.Owner != info.Owner {
				t.Errorf("%s: the observer was told of %+v", name, held)
			}
			if _, err = try(t.Context(), plain, job); heldBy(err) != nil {
				says(t, err, "or waited for readers")
			}
		}
		wired.fault("Inspect", fails)
		says(t, second(named.Acquire(t.Context(), job, lease.WaitAtMost(time.Second))), "or waited for readers")
		wired.Up()
		cancel()
		waits.end(t)

		kept := txlock.Named("kept")
		release(t, share(t, a, kept))
		release(t, acquire(t, a, kept, lease.HoldAtLeast(time.Hour)))
		err := second(plain.Acquire(t.Context(), kept, lease.WaitAtMost(time.Second)))
		if wants(t, "Acquire", err, txlock.ErrWaitTimeout); strings.Contains(err.Error(), "waited for readers") {
			t.Errorf("what was released waits for nobody: %v", err)
		}
	})
}

// answers notes the last grant, refusal and wait that it is told of.
type answers struct{ granted, refused, waited txlock.Event }

func (a *answers) observe(_ context.Context, e txlock.Event) {
	switch e.Kind {
	case txlock.Granted:
		a.granted = e
	case txlock.Refused:
		a.refused = e
	case txlock.Waited:
		a.waited = e
	}
}

func (a *answers) names(t *testing.T, what string, info lease.Info) {
	t.Helper()
	want := txlock.HeldError{Key: info.Key, Owner: info.Owner, Label: info.Label, Since: info.Since}
	for which, e := range map[string]txlock.Event{"granted": a.granted, "waited": a.waited} {
		if e.Held == nil || *e.Held != want {
			t.Errorf("%s: %s has %+v, want %+v", what, which, e.Held, want)
		}
	}
}

// TestSlowWaitsNameTheHolder proves that the observer is told for whom a wait was, also one in vain: by
// a look of the wait's own, or where there is none and SlowWait asks for it, by one look more.
func TestSlowWaitsNameTheHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a := db.manager(lease.WithLabel("the nightly report"))
		for name, c := range map[string]struct {
			wait, hold verb
			options    []lease.AcquireOption
		}{
			"Acquire": {exclusive, exclusive, nil}, "Acquire fairly": {fairly, exclusive, nil}, "AcquireShared": {shared, exclusive, nil}, "a permit": {permitOf, permitOf, nil},
			"Acquire under a limit": {exclusive, exclusive, []lease.AcquireOption{lease.WaitAtMost(time.Hour)}},
		} {
			for _, asked := range []bool{true, false} {
				told := new(answers)
				options := []lease.ManagerOption{lease.Observe(told.observe), lease.NameHolders(), lease.SlowWait(time.Second)}
				if !asked {
					options = options[:2]
				}
				b, wire := db.process(options...)
				key := txlock.Named(name)
				held := mustLease(t)(c.hold(t.Context(), a, key))
				info := infoOf(t, held, a)
				info.Key = key
				if asked {
					wants(t, name+" in vain", second(c.wait(limited(t, 10*time.Second), b, key, c.options...)), context.DeadlineExceeded)
					if of := told.refused.Held; of == nil || of.Owner != info.Owner {
						t.Errorf("%s in vain: %+v", name, of)
					}
				}
				looks := len(wire.calls("Inspect"))
				time.AfterFunc(10*time.Second, func() { _ = held.Release(context.Background()) })
				l := mustLease(t)(c.wait(t.Context(), b, key, c.options...))
				if asked || name != "a permit" { // whose wait sees only that none is free
					told.names(t, name, info)
				}
				want := 0
				if asked {
					want = 1
				}
				if n := len(wire.calls("Inspect")) - looks; n != want {
					t.Errorf("%s, asked=%t: %d looks more, want %d", name, asked, n, want)
				}
				release(t, l)
				told.granted, told.waited = txlock.Event{}, txlock.Event{}
				l = mustLease(t)(c.wait(t.Context(), b, key, c.options...))
				if told.granted.Held != nil || told.waited.Held != nil {
					t.Errorf("%s: free, but %v had it", name, told.granted.Held)
				}
				release(t, l)
			}
		}
	})
}

// TestSlowServerLosesNotAll proves that a server which renews too few leases in time for all
// of them to be kept loses some and not all.
func TestSlowServerLosesNotAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const ttl, leases, perRow = time.Second, 300, 2 * time.Millisecond
		m, wire := db.process(lease.TTL(ttl))
		held := several(leases, func(n int) *lease.Lease { return share(t, m, txlock.Named(fmt.Sprint(n))) })
		wire.fault("RenewMany", func(ctx context.Context, _ string, _ store.Row, call func() error) error {
			before, _ := db.Rows()
			err := call()
			after, _ := db.Rows()
			took := time.Duration(0)
			for at, row := range after {
				if row.Expires != before[at].Expires {
					took += perRow
				}
			}
			select {
			case <-time.After(took):
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		time.Sleep(5 * ttl)
		kept := 0
		for _, l := range held {
			if l.Err() == nil {
				kept++
			}
		}
		if kept < leases/4 {
			t.Errorf("%d of %d are kept", kept, leases)
		}
	})
}
