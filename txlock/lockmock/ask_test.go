package lockmock_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/txlock"
)

// TestAsk makes Ask and what a holder learns of it on a mock, with every outcome.
func TestAsk(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx := m.Context()
		manager, leases := m.manager()
		for _, key := range []txlock.Key{orders.Key(7), carts.Key("k")} {
			leases.ExpectAsk(key).NotHeld()
			wants(m, "Ask", manager.Ask(ctx, key, "why"), txlock.ErrNotHeld)
			leases.ExpectAcquire(key).Granted(41)
			leases.ExpectAsk(key).Succeeds()
			leases.ExpectRenew(key).Succeeds()
			leases.ExpectRenew(key).Asked("why")
			leases.ExpectRenew(key).Asked("another reason")
			leases.ExpectRelease(key).Succeeds()
			l, err := manager.Acquire(ctx, key)
			must(m, err)
			must(m, manager.Ask(ctx, key, "why"))
			must(m, l.Renew(ctx))
			if why, asked := l.Asked(); asked {
				m.Errorf("asked because of %q", why)
			}
			for _, want := range []string{"why", "another reason"} {
				must(m, l.Renew(ctx))
				<-l.Revoked()
				if why, asked := l.Asked(); !asked || why != want {
					m.Errorf("asked %t because of %q", asked, why)
				}
			}
			must(m, l.Release(ctx))
		}
		other, err := m.db.Conn(ctx) // the one on which Ask fails is closed
		must(m, err)
		defer other.Close()
		missing := &mysql.MySQLError{Number: 1146, Message: "no table"}
		leases.ExpectAsk(orders.Key(7)).Fails(missing)
		wants(m, "Ask", manager.Ask(ctx, orders.Key(7), ""), missing)
	})
}
