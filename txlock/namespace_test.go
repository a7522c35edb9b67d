package txlock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

const shop, bank = txlock.Namespace("shop"), txlock.Namespace("bank")

func ExampleNamespace() {
	const shop = txlock.Namespace("shop")
	orders := txlock.NewFamily[int64]("order", txlock.In(shop)) // "@shop/order:42"
	nightly := shop.Named("nightly-report")                     // "@shop/nightly-report"

	fmt.Println(orders.Key(42))
	fmt.Println(nightly)
	fmt.Println(orders.Key(42) == txlock.NewFamily[int64]("order").Key(42))
	fmt.Println(txlock.Named("@shop/nightly-report").Validate())
	// Output:
	// @shop/order:42
	// @shop/nightly-report
	// false
	// txlock: invalid key: "@shop/nightly-report": names that begin with @ are those of a Namespace
}

func TestNamespaceWritesKeys(t *testing.T) {
	t.Parallel()
	long := txlock.Namespace(strings.Repeat("n", 64))
	for _, c := range []struct {
		key  txlock.Key
		want string
	}{
		{shop.Named("nightly"), "@shop/nightly"},
		{shop.Named("order:42"), "@shop/order:42"},
		{txlock.NewFamily[int]("order", txlock.In(shop)).Key(42), "@shop/order:42"},
		{txlock.NewFamily[int]("order", txlock.Hashed(), txlock.In(shop)).Key(42), "@shop/order:42"},
		{txlock.NewStringerFamily[time.Duration]("every", txlock.In(shop)).Key(time.Second), "@shop/every:1s"},
		{txlock.Segments(shop.Named("p"), 2)[1], "@shop/p#2"},
		{shop.Named("@bank/x"), "@shop/@bank/x"},
		{shop.Named("lockstep:x"), "@shop/lockstep:x"},
		{shop.Named("/"), "@shop//"},
		{txlock.Namespace("Büro : 1").Named("x"), "@Büro : 1/x"},
		{long.Named(strings.Repeat("k", 189)), "@" + string(long) + "/" + strings.Repeat("k", 189)},
	} {
		if err := c.key.Validate(); err != nil || c.key.String() != c.want {
			t.Errorf("the key is %q, want %q; Validate: %v", c.key, c.want, err)
		}
		if again := txlock.ParseKey(c.want); !c.key.Hashed() && again != c.key {
			t.Errorf("ParseKey(%q) is another key: %v", c.want, again.Validate())
		}
	}
}

func TestInvalidNamespaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key  txlock.Key
		says string
	}{
		{txlock.Namespace("").Named("x"), "the namespace is empty"},
		{txlock.Namespace(strings.Repeat("n", 255)).Named("x"), "the namespace has 255 bytes, 64 are allowed"},
		{txlock.Namespace(strings.Repeat("n", 65)).Named(""), "the namespace has 65 bytes"},
		{txlock.Namespace("caf\xe9").Named("x"), "the namespace is not valid UTF-8"},
		{txlock.Namespace("a/b").Named("x"), `the namespace "a/b" has a slash`},
		{txlock.NewFamily[int]("f", txlock.In("")).Key(1), "the namespace is empty"},
		{txlock.NewFamily[int]("f", txlock.In("/")).Key(1), "has a slash"},
		{txlock.NewFamily[int]("a:b", txlock.In(shop)).Key(1), "empty or has a colon"},
		{txlock.NewFamily[int]("", txlock.In(shop)).Key(1), "empty or has a colon"},
		{txlock.NewFamily[int]("@f", txlock.In(shop)).Key(1), "those of a Namespace"},
		{txlock.NewFamily[int]("f", txlock.In(shop)).Key(0), "the zero identifier"},
		{shop.Named(""), "the name is empty"},
		{shop.Named("caf\xe9"), "not valid UTF-8"},
		{shop.Named(strings.Repeat("k", 250)), "256 bytes, 255 are allowed"},
		{txlock.Segments(txlock.Namespace("").Named("x"), 2)[0], "the namespace is empty"},
		{txlock.Named("@shop/order:42"), "those of a Namespace"},
		{txlock.Named("@"), "those of a Namespace"},
		{txlock.NewFamily[int]("@shop/order").Key(42), "those of a Namespace"},
		{txlock.Segments(txlock.Named("@shop/x"), 2)[1], "those of a Namespace"},
		{txlock.ParseKey("@shop"), "the name is empty"},
		{txlock.ParseKey("@/x"), "the namespace is empty"},
		{txlock.ParseKey(""), "the name is empty"},
		{txlock.ParseKey("lockstep:x"), "lockstep's own"},
	} {
		err := c.key.Validate()
		if !errors.Is(err, txlock.ErrInvalidKey) || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 400 {
			t.Errorf("the key %q: %v, want ErrInvalidKey that says %q", c.key, err, c.says)
		}
	}
}

// FuzzNamespace makes keys of two namespaces and of none: the same key is one of the same
// namespace and name.
func FuzzNamespace(f *testing.F) {
	for _, seed := range [][3]string{{"shop", "bank", "x"}, {"", "a/b", "b/x"}, {"a", "a/b", "@a/x"}, {"@a", "a", "/@a/x"}} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, one, other, text string) {
		type made struct{ namespace, name string }
		keys := make(map[string]made)
		add := func(namespace, name string, key txlock.Key) {
			if key.Validate() != nil {
				return
			}
			if was, there := keys[key.String()]; there && was != (made{namespace, name}) {
				t.Errorf("%q is of %q and of %q", key, was, made{namespace, name})
			}
			keys[key.String()] = made{namespace, name}
			if again := txlock.ParseKey(key.String()); again.Validate() != nil || again.String() != key.String() {
				t.Errorf("ParseKey(%q): %v", key, again.Validate())
			}
		}
		for _, name := range []string{text, other + "/" + text, one + "/" + text, "@" + one + "/" + text} {
			add("", name, txlock.Named(name))
			add("", name+":1", txlock.NewFamily[int](name).Key(1))
			for _, n := range []string{one, other, "@" + one} {
				in := txlock.In(txlock.Namespace(n))
				add("@"+n, name, txlock.Namespace(n).Named(name))
				add("@"+n, name+":1", txlock.NewFamily[int](name, in).Key(1))
				add("@"+n, name+":1", txlock.NewFamily[int](name, in, txlock.Hashed()).Key(1))
			}
		}
	})
}

// TestNamespaces: one name in two namespaces and in none is three keys, for all that takes
// keys.
func TestNamespaces(t *testing.T) {
	onOwn(t, func(t *testing.T, db *testdb.DB) {
		name := "name:" + rand.Text()
		keys := []txlock.Key{txlock.Named(name), shop.Named(name), bank.Named(name)}
		pool := newPool(t, db, true)

		locks := begin(t, pool, nil)
		for _, key := range keys {
			own := begin(t, pool, nil)
			own.lock(t, key)
			for _, part := range txlock.Segments(key, 2) {
				own.lock(t, part)
			}
			wants(t, "TryLock beside its holder", second(locks.TryLock(t.Context(), key)), txlock.ErrBusy)
			if first, err := locks.Once(t.Context(), key); !first || err != nil {
				t.Errorf("Once(%q): %t, %v", key, first, err)
			}
		}
		holders, err := txlock.Holders(t.Context(), pool, keys...)
		if err != nil || len(holders) != 3 || holders[1].Key.String() != "@shop/"+name {
			t.Errorf("holders: %+v, %v", holders, err)
		}

		leases, err := lease.NewManager(pool)
		noError(t, err)
		jobs, err := job.New(pool, leases)
		noError(t, err)
		t.Cleanup(func() { noError(t, errors.Join(jobs.Close(context.Background()), leases.Close(context.Background()))) })
		at := time.Now().Add(-time.Hour).Truncate(time.Hour)
		for _, key := range keys {
			ran, err := jobs.Tick(t.Context(), key, at, func(context.Context, time.Time) error { return nil })
			if !ran || err != nil {
				t.Errorf("Tick(%q): %t, %v", key, ran, err)
			}
			_, err = jobs.Claim(t.Context(), key, at)
			wants(t, "the tick again", err, job.ErrDone)
			_, err = leases.TryAcquire(t.Context(), key)
			noError(t, err)
			permits, err := leases.Semaphore(txlock.Segments(key, 1)[0], 1)
			noError(t, err)
			_, err = permits.TryAcquire(t.Context())
			noError(t, err)
		}
		listed, err := leases.List(t.Context())
		if err != nil || len(listed) != 6 {
			t.Errorf("%d leases are listed, want 6: %v", len(listed), err)
		}
		for _, l := range listed {
			wants(t, fmt.Sprintf("release %q by what is listed", l.Key), leases.ForceRelease(t.Context(), l.Key), nil)
		}
		if listed, err := leases.List(t.Context()); err != nil || len(listed) > 0 {
			t.Errorf("listed after their release: %v, %v", listed, err)
		}
	})
}

// TestNamespacesOfAMajority is TestNamespaces for leases over several databases.
func TestNamespacesOfAMajority(t *testing.T) {
	t.Parallel()
	var nodes []*lease.Manager
	for range 3 {
		memory := memstore.New().Store()
		m, err := lease.NewManager(memory.Pool())
		noError(t, err)
		nodes = append(nodes, m)
		t.Cleanup(func() { noError(t, errors.Join(m.Close(context.Background()), memory.Pool().Close())) })
	}
	m, err := quorum.New(nodes)
	noError(t, err)
	t.Cleanup(func() { noError(t, m.Close(context.Background())) })
	noError(t, m.Install(t.Context()))
	for _, key := range []txlock.Key{txlock.Named("x"), shop.Named("x"), bank.Named("x")} {
		noError(t, second(m.TryAcquire(t.Context(), key)))
	}
}

// TestHashedNamespaces: the same name has another center lock in another namespace.
func TestHashedNamespaces(t *testing.T) {
	t.Parallel()
	none, one, other := txlock.NewFamily[int]("cart", txlock.Hashed()), txlock.NewFamily[int]("cart", txlock.Hashed(), txlock.In(shop)), txlock.NewFamily[int]("cart", txlock.In(bank), txlock.Hashed())
	same := 0
	for id := 1; id <= 1000; id++ {
		a, b, c := none.Key(id).Slot(), one.Key(id).Slot(), other.Key(id).Slot()
		if a == b || b == c || a == c {
			same++
		}
	}
	if same > 10 {
		t.Errorf("%d of 1,000 keys share their center lock with that of another namespace", same)
	}
}
