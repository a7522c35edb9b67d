package txlock_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
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

// FuzzNamespace makes keys of two namespaces and of none: the same key is one of the same namespace and name.
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
			was, there := keys[key.String()]
			testdb.ErrorIf(t, there && was != (made{namespace, name}), "%q is of %q and of %q", key, was, made{namespace, name})
			keys[key.String()] = made{namespace, name}
			again := txlock.ParseKey(key.String())
			testdb.ErrorIf(t, again.Validate() != nil || again.String() != key.String(), "ParseKey(%q): %v", key, again.Validate())
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

// seat is made of a text and a number.
type seat struct {
	Row    string
	Number int
}

func (s seat) String() string { return fmt.Sprintf("%s/%d", s.Row, s.Number) }

// TestCheckColumns compares families with columns of all kinds, and demands the cure where a row would have several keys.
func TestCheckColumns(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		noPad := map[testdb.Engine]string{testdb.MariaDB: "utf8mb4_nopad_bin", testdb.MySQL: "utf8mb4_0900_bin"}[db.Engine()]
		of := func(charset, collation string) string { return " CHARACTER SET " + charset + " COLLATE " + collation }
		type checker interface {
			CheckColumns(ctx context.Context, db *sql.DB, table string, names ...string) error
		}
		exact, numbers := txlock.NewFamily[string]("f", txlock.Exact()), txlock.NewFamily[int64]("f")
		folded := func(collation string) checker { return txlock.NewFamily[string]("f", txlock.Fold(collation)) }
		for _, c := range []struct {
			column string
			family checker
			want   string
		}{
			{"VARBINARY(9)", exact, ""},
			{"VARCHAR(9)" + of("utf8mb4", noPad), exact, ""},
			{"BLOB", exact, ""},
			{"BINARY(9)", exact, "zero bytes at the end"},
			{"CHAR(9)" + of("utf8mb4", noPad), exact, "blanks at the end"},
			{"VARCHAR(9)" + of("utf8mb4", "utf8mb4_bin"), exact, `txlock.Fold("utf8mb4_bin")`},
			{"ENUM('a')" + of("utf8mb4", "utf8mb4_bin"), exact, "is a ENUM"},
			{"ENUM('a')" + of("utf8mb4", "utf8mb4_bin"), folded("utf8mb4_bin"), "is a ENUM"},
			{"VARCHAR(9)" + of("utf8mb4", "utf8mb4_general_ci"), exact, "such as Bob and bob"},
			{"TEXT" + of("latin1", "latin1_swedish_ci"), exact, "such as Bob and bob"},
			{"BIGINT", exact, "make the identifier an integer"},
			{"DATE", exact, "is a DATE"},
			{"SET('a')" + of("utf8mb4", "utf8mb4_bin"), folded("utf8mb4_bin"), "is a SET"},
			{"GEOMETRY", exact, "isn't known"},
			{"VARCHAR(9)" + of("utf8mb4", "utf8mb4_general_ci"), folded("utf8mb4_general_ci"), ""},
			{"CHAR(9)" + of("utf8mb4", "utf8mb4_bin"), folded("utf8mb4_bin"), ""},
			{"VARCHAR(9)" + of("utf8mb3", "utf8mb3_general_ci"), folded("utf8mb3_general_ci"), ""},
			{"VARCHAR(9)" + of("utf8mb4", "utf8mb4_unicode_ci"), folded("utf8mb4_general_ci"), "has the collation utf8mb4_unicode_ci"},
			{"VARBINARY(9)", folded("utf8mb4_bin"), "has the collation binary"},
			{"BIGINT", folded("utf8mb4_bin"), "make the identifier an integer"},
			{"VARBINARY(9)", folded("utf8mb4_turkish_ci"), "doesn't know the collation utf8mb4_turkish_ci"},
			{"VARBINARY(9)", txlock.NewFamily[string]("f"), "txlock.Exact"},
			{"BIGINT UNSIGNED", numbers, ""},
			{"VARCHAR(9)", numbers, "make it BIGINT"},
			{"CHAR(36)", txlock.NewFamily[uuid.UUID]("f"), ""},
			{"BINARY(16)", txlock.NewFamily[uuid.UUID]("f"), ""},
			{"BIGINT", txlock.NewFamily[uuid.UUID]("f"), "make the column CHAR(36)"},
			{"VARBINARY(99)", txlock.NewStringerFamily[*seat]("f", txlock.Exact()), "make sure by a test"},
			{"BIGINT", txlock.Family[int]{}, "the zero Family"},
		} {
			table := db.CreateTable(t, "checked", "k "+c.column)
			err := c.family.CheckColumns(t.Context(), db.Admin(), table, "k")
			testdb.ErrorIf(t, c.want == "" && err != nil || c.want != "" && (!errors.Is(err, txlock.ErrInvalidKey) || !strings.Contains(err.Error(), c.want)),
				"%s: %v, want %q", c.column, err, c.want)
		}

		seats := txlock.NewStringerFamily[seat]("seat", txlock.Exact())
		table := db.CreateTable(t, "seats", "r VARBINARY(9), n INT, c VARCHAR(9)"+of("utf8mb4", "utf8mb4_bin"))
		wants(t, "two columns", seats.CheckColumns(t.Context(), db.Admin(), table, "r", "n"), nil)
		wants(t, "padded in two columns", seats.CheckColumns(t.Context(), db.Admin(), table, "c", "n"), txlock.ErrInvalidKey)
		wants(t, "the wrong order", seats.CheckColumns(t.Context(), db.Admin(), table, "n", "r"), txlock.ErrInvalidKey)
		wants(t, "too few columns", seats.CheckColumns(t.Context(), db.Admin(), table), txlock.ErrInvalidKey)
		wants(t, "too many columns", exact.CheckColumns(t.Context(), db.Admin(), table, "r", "r"), txlock.ErrInvalidKey)
		wants(t, "no such column", exact.CheckColumns(t.Context(), db.Admin(), table, "x"), txlock.ErrInvalidKey)
		err := exact.CheckColumns(t.Context(), db.Admin(), "no`such", "x")
		testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "inspect column `x` of `no``such`"), "no such table: %v", err)
		testdb.Fails(t, "CheckColumns without a pool", exact.CheckColumns(t.Context(), nil, table, "r"))
	})
}

// TestNamespaces: one name in two namespaces and in none is three keys, for all that takes keys.
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
			wants(t, "TryLock beside its holder", testdb.Err(locks.TryLock(t.Context(), key)), txlock.ErrBusy)
			first, err := locks.Once(t.Context(), key)
			testdb.ErrorIf(t, !first || err != nil, "Once(%q): %t, %v", key, first, err)
		}
		holders, err := txlock.Holders(t.Context(), pool, keys...)
		testdb.ErrorIf(t, err != nil || len(holders) != 3 || holders[1].Key.String() != "@shop/"+name, "holders: %+v, %v", holders, err)

		leases := testdb.Got(lease.NewManager(pool))(t)
		jobs := testdb.Got(job.New(pool, leases))(t)
		t.Cleanup(func() { noError(t, errors.Join(jobs.Close(context.Background()), leases.Close(context.Background()))) })
		at := time.Now().Add(-time.Hour).Truncate(time.Hour)
		for _, key := range keys {
			ran, err := jobs.Tick(t.Context(), key, at, func(context.Context, time.Time) error { return nil })
			testdb.ErrorIf(t, !ran || err != nil, "Tick(%q): %t, %v", key, ran, err)
			wants(t, "the tick again", testdb.Err(jobs.Claim(t.Context(), key, at)), job.ErrDone)
			noError(t, testdb.Err(leases.TryAcquire(t.Context(), key)))
			permits := testdb.Got(leases.Semaphore(txlock.Segments(key, 1)[0], 1))(t)
			noError(t, testdb.Err(permits.TryAcquire(t.Context())))
		}
		listed, err := leases.List(t.Context())
		testdb.ErrorIf(t, err != nil || len(listed) != 6, "%d leases are listed, want 6: %v", len(listed), err)
		for _, l := range listed {
			wants(t, fmt.Sprintf("release %q by what is listed", l.Key), leases.ForceRelease(t.Context(), l.Key), nil)
		}
		listed, err = leases.List(t.Context())
		testdb.ErrorIf(t, err != nil || len(listed) > 0, "listed after their release: %v, %v", listed, err)
	})
}
