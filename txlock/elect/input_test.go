package elect_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

func inSubtest(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	t.Run("", func(t *testing.T) { inMemory(t, test) })
}

// TestBadInput proves that what can't be an election is refused before anything is sent.
func TestBadInput(t *testing.T) {
	inMemory(t, func(t *testing.T, c *cluster) {
		p := c.process("a")
		at := time.Now()
		if _, err := elect.New(nil, scheduler); err == nil {
			t.Error("New without a manager does not fail")
		}
		if err := p.Run(t.Context(), nil); err == nil {
			t.Error("Run without a function does not fail")
		}
		for _, key := range []txlock.Key{{}, txlock.Named(""), txlock.Named("lockstep:x"), txlock.Named(strings.Repeat("x", 250))} {
			_, err := elect.New(p.leases, key)
			wants(t, key.String(), err, txlock.ErrInvalidKey)
		}
		for name, option := range map[string]elect.Option{
			"TTL(0)": elect.TTL(0), "TTL(-1)": elect.TTL(-1), "TTL too long": elect.TTL(lease.MaxTTL + 1),
			"Grace(0)": elect.Grace(0), "Grace too long": elect.Grace(7501 * time.Millisecond),
			"Watchdog(0)": elect.Watchdog(0), "InstanceName empty": elect.InstanceName(""), "InstanceName too long": elect.InstanceName(strings.Repeat("x", 256)),
			"InstanceName no UTF-8": elect.InstanceName("web-\xff"),
		} {
			_, err := elect.New(p.leases, scheduler, option)
			wants(t, name, err, txlock.ErrInvalidOption)
		}
		if _, err := elect.New(p.leases, txlock.Named(strings.Repeat("x", 248))); err == nil || !strings.Contains(err.Error(), "at most 247 bytes, this one has 248") {
			t.Errorf("a name of 248 bytes: %v", err)
		}
		if n := c.sent(at); n > 0 {
			t.Errorf("%d calls were sent", n)
		}
		e, err := elect.New(p.leases, txlock.Named(strings.Repeat("x", 247)), elect.InstanceName(strings.Repeat("y", 255)))
		must(t, err)
		if err := e.Run(t.Context(), func(_ context.Context, term *elect.Term) error { return term.Err() }); err != nil {
			t.Error(err)
		}
		slow, err := lease.NewManager(p.store.Pool(), lease.RenewEvery(10*time.Second))
		must(t, err)
		defer func() { must(t, slow.Close(context.Background())) }()
		e, err = elect.New(slow, scheduler, elect.TTL(ttl))
		must(t, err)
		wants(t, "a manager that renews too seldom", e.Run(t.Context(), follow), txlock.ErrInvalidOption)
	})
}
