package shards_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/shards"
)

// look is how often the processes of tests look at the records.
const look = 300 * time.Millisecond

var orders = txlock.NewFamily[int]("order")

// site has the databases of the shards a to d, which stand for four servers.
type site map[string]*testdb.DB

// onServers runs a test on every server, with a site of its own.
func onServers(t *testing.T, test func(t *testing.T, on site)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			on := make(site)
			for _, name := range []string{"a", "b", "c", "d"} {
				db := testdb.Shared(t, engine).OpenLeases(t)
				for _, host := range []string{"%", "localhost"} {
					db.Exec(t, fmt.Sprintf("GRANT LOCK TABLES ON `%s`.* TO '%s'@'%s'", db.Name(), db.Config().User, host))
				}
				on[name] = db
			}
			test(t, on)
		})
	}
}

// pools are those of a process, guarded.
func (on site) pools(t *testing.T, names ...string) map[string]*sql.DB {
	t.Helper()
	pools := make(map[string]*sql.DB)
	for _, name := range names {
		cfg := on[name].Config()
		cfg.Logger = &mysql.NopLogger{} // contexts end on purpose
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		pool := sql.OpenDB(locksqlc.Connector(connector))
		t.Cleanup(func() {
			if n := testdb.InUse(pool); n != 0 {
				t.Errorf("%d connections are in use at the end", n)
			}
			if err := pool.Close(); err != nil {
				t.Error(err)
			}
		})
		pools[name] = pool
	}
	return pools
}

// process is the set of a process.
func (on site) process(t *testing.T, names ...string) *shards.Shards {
	t.Helper()
	return newSet(t, on.pools(t, names...))
}

func newSet(t *testing.T, pools map[string]*sql.DB, options ...shards.Option) *shards.Shards {
	t.Helper()
	s, err := shards.New(pools, options...)
	if err != nil {
		t.Fatal(err)
	}
	return s.LookAgain(look)
}

// moving returns the sets before and after a shard is added, and a key that moves to it,
// with its pool before. The first set is installed.
func (on site) moving(t *testing.T) (abc, abcd *shards.Shards, key txlock.Key, pool *sql.DB) {
	t.Helper()
	abc, abcd = on.process(t, "a", "b", "c"), on.process(t, "a", "b", "c", "d")
	must(t, abc.Install(t.Context()))
	key = some(t, abc, abcd, "a", "d")
	pool, err := abc.For(t.Context(), key)
	must(t, err)
	return abc, abcd, key, pool
}

// operator is a process that begins a change, and waits for holders alone.
func (on site) operator(t *testing.T) *shards.Shards {
	t.Helper()
	return on.process(t, "a", "b", "c").LookAgain(time.Millisecond)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t *testing.T, what string, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func second[P any](_ P, err error) error { return err }

// some returns a key that goes from one shard to another, or stays if both are the same.
func some(t *testing.T, from, to *shards.Shards, before, after string) txlock.Key {
	t.Helper()
	for id := 1; id < 10_000; id++ {
		if key := orders.Key(id); from.Name(key) == before && to.Name(key) == after {
			return key
		}
	}
	t.Fatal("there is no such key")
	return txlock.Key{}
}

// granted makes sure that a key is locked in its shard, and nowhere else.
func (on site) granted(t *testing.T, s *shards.Shards, keys ...txlock.Key) {
	t.Helper()
	for _, key := range keys {
		db, err := s.For(t.Context(), key)
		if err != nil {
			t.Errorf("For(%s): %v", key, err)
			continue
		}
		must(t, locksqlc.Run(t.Context(), db, []txlock.Key{key}, func(tx *sql.Tx) error {
			scope, err := locksqlc.Join(t.Context(), tx)
			if err != nil {
				return err
			}
			for name, other := range on {
				holders, err := txlock.Holders(t.Context(), other.Admin(), key)
				if err != nil {
					return err
				}
				if want := name == s.Name(key); (len(holders) > 0) != want {
					t.Errorf("%s is held in %s: %t, and should be in %s", key, name, !want, s.Name(key))
				}
			}
			return s.Guard(t.Context(), scope, key)
		}))
	}
}

// records are the texts in all databases.
func (on site) records(t *testing.T) string {
	t.Helper()
	var all []string
	for _, name := range []string{"a", "b", "c", "d"} {
		var text string
		err := on[name].Admin().QueryRowContext(t.Context(), "SELECT result FROM lockstep_once WHERE name = ?", "lockstep:shard:"+name).Scan(&text)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			t.Fatal(err)
		}
		all = append(all, name+": "+text)
	}
	return strings.Join(all, "; ")
}

// within is a context for what must come to an end.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
