package tests

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/mysql"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/pressly/goose/v3"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// managedArgs make a server of each engine as strict as cloud services do.
var managedArgs = map[testdb.Engine][]string{
	testdb.MySQL: {
		"--sql-require-primary-key=ON", "--sql-generate-invisible-primary-key=ON",
		"--log-bin=log", "--server-id=1", "--log-bin-trust-function-creators=OFF",
	},
	testdb.MariaDB: {
		"--innodb-force-primary-key=ON",
		"--log-bin=log", "--server-id=1", "--binlog-format=ROW", "--log-bin-trust-function-creators=OFF",
	},
}

// openOwner opens a guarded pool for the owner of a database.
func openOwner(t *testing.T, db *testdb.DB, tls string) *sql.DB {
	t.Helper()
	pool := testdb.Got(locksqlc.Open(db.DSN(func(cfg *mysql.Config) { cfg.User, cfg.Passwd, cfg.TLSConfig = db.Name(), "o", tls })))(t)
	t.Cleanup(func() { fatal(t, pool.Close()) })
	return pool
}

const dml = "SELECT, INSERT, UPDATE, DELETE, CREATE"

// TestManagedServer proves that a database's owner, who is no administrator, installs and uses everything on a server as
// strict as managedArgs, with TLS only, that Check only advises where he may create no procedures, and that a server that
// is read only, as a replica is, grants nothing.
func TestManagedServer(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		server := testdb.Dedicated(t, engine, testdb.Args(managedArgs[engine]...))
		advices := map[string]error{dml: nil} // by the rights of the owner
		if engine == testdb.MySQL {
			advices = map[string]error{dml: schema.ErrProcedures, dml + ", CREATE ROUTINE, ALTER ROUTINE, EXECUTE": nil}
		}
		for rights, advice := range advices {
			ctx, db := t.Context(), server.Fresh(t)
			db.Exec(t, "CREATE USER "+db.Name()+" IDENTIFIED BY 'o' REQUIRE SSL")
			db.Exec(t, "GRANT "+rights+" ON `"+db.Name()+"`.* TO "+db.Name())
			var refused *mysql.MySQLError
			err := schema.Install(ctx, openOwner(t, db, ""))
			testdb.ErrorIf(t, !errors.As(err, &refused) || refused.Number != 1045, "Install without TLS: %v, want 1045", err)
			pool := openOwner(t, db, "skip-verify")
			fatal(t, schema.Install(ctx, pool))
			err = schema.Check(ctx, pool)
			testdb.ErrorIf(t, !errors.Is(err, advice) || err != nil && !schema.Advisory(err), "with %s Check: %v, want %v", rights, err, advice)
			useAll(t, pool)
			db.Exec(t, "SET GLOBAL read_only = ON")
			grantsNothing(t, pool)
			db.Exec(t, "SET GLOBAL read_only = OFF")
		}
	})
}

// useAll uses each kind of lock once.
func useAll(t *testing.T, pool *sql.DB) {
	t.Helper()
	ctx, key := t.Context(), txlock.Named("managed")
	hashed := txlock.NewFamily[int64]("managed", txlock.Hashed())
	runs := 0
	err := locksqlc.Run(ctx, pool, []txlock.Key{key, hashed.Key(1)}, func(*sql.Tx) error { runs++; return nil })
	testdb.ErrorIf(t, err != nil || runs != 1, "Run: %d runs, %v", runs, err)
	first, err := locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { return nil })
	testdb.ErrorIf(t, err != nil || !first, "Once: first %t, %v", first, err)
	leases := testdb.Got(lease.NewManager(pool))(t)
	jobs := testdb.Got(job.New(pool, leases))(t)
	wants(t, "a lease", leases.Do(ctx, key, func(ctx context.Context, l *lease.Lease) error { return l.Renew(ctx) }), nil)
	fatal(t, errors.Join(jobs.Close(ctx), leases.Close(ctx)))
}

// grantsNothing demands that each kind of lock is refused by a server that is read only.
func grantsNothing(t *testing.T, pool *sql.DB) {
	t.Helper()
	ctx, key := t.Context(), txlock.Named("replica")
	for _, k := range []txlock.Key{key, txlock.NewFamily[int64]("replica", txlock.Hashed()).Key(1)} {
		wants(t, "Run", locksqlc.Run(ctx, pool, []txlock.Key{k}, func(*sql.Tx) error { return nil }), txlock.ErrReadOnly)
	}
	wants(t, "TryAcquire", testdb.Err(faultManager(t, pool).TryAcquire(ctx, key)), txlock.ErrReadOnly)
	wants(t, "Once", testdb.Err(locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { return nil })), txlock.ErrReadOnly)
}

// TestShortLivedPasswords proves that a pool whose connector fetches the password still works when
// the password has changed and all sessions have ended, and that its lease is renewed.
func TestShortLivedPasswords(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		ctx, db := t.Context(), testdb.Open(t, engine)
		user := "short_" + db.Name()[len(db.Name())-6:]
		var password atomic.Pointer[string]
		rotate := func(verb, next string) {
			db.Exec(t, verb+" USER "+user+" IDENTIFIED BY '"+next+"'")
			password.Store(&next)
		}
		rotate("CREATE", "one")
		t.Cleanup(func() {
			fatal(t, testdb.Err(db.Admin().ExecContext(context.WithoutCancel(ctx), "DROP USER "+user)))
		})
		db.Exec(t, "GRANT "+dml+", EXECUTE ON `"+db.Name()+"`.* TO "+user)

		cfg, fetched := db.Config(), new(atomic.Int64)
		cfg.User, cfg.Passwd = user, ""
		err := cfg.Apply(mysql.BeforeConnect(func(_ context.Context, cfg *mysql.Config) error {
			fetched.Add(1)
			cfg.Passwd = *password.Load()
			return nil
		}))
		fatal(t, err)
		base := testdb.Got(mysql.NewConnector(cfg))(t)
		pool := sql.OpenDB(locksqlc.Connector(base))
		t.Cleanup(func() { _ = pool.Close() })
		l := testdb.Got(faultManager(t, pool).Acquire(ctx, txlock.Named(user)))(t)
		before := fetched.Load()
		rotate("ALTER", "two")
		endSessions(t, db, user)
		wants(t, "renew with the new password", l.Renew(ctx), nil)
		wants(t, "lock with the new password", locksqlc.Run(ctx, pool, []txlock.Key{txlock.Named(user)}, func(*sql.Tx) error { return nil }), nil)
		testdb.ErrorIf(t, fetched.Load() == before, "no password was fetched after the sessions had ended")
	})
}

// endSessions ends all sessions of a user, as a fail-over does.
func endSessions(t *testing.T, db *testdb.DB, user string) {
	t.Helper()
	delays := testdb.Delays(t)
	rows := testdb.Got(db.Admin().QueryContext(t.Context(), "SELECT id FROM information_schema.processlist WHERE user = ?", user))(t)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int64
		fatal(t, rows.Scan(&id))
		if _, err := db.Admin().ExecContext(t.Context(), fmt.Sprintf("KILL %d", id)); err != nil {
			t.Log(err) // it has ended
		}
	}
	fatal(t, rows.Err())
	testdb.ErrorIf(t, !testdb.Await(15*time.Second+delays(), func() bool {
		return count(t, db.Admin(), "SELECT COUNT(*) FROM information_schema.processlist WHERE user = ?", user) == 0
	}), "sessions are still there")
}

// TestServerEndsIdleTransaction proves that a transaction whose session the server has ended
// for being idle sends nothing more, doesn't commit, and releases its lock.
func TestServerEndsIdleTransaction(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		ctx, db, delays := t.Context(), testdb.Open(t, engine), testdb.Delays(t)
		key := txlock.Named("idle " + db.Name())
		tx := testdb.Got(faultPool(t, db, network{}, guarded).BeginTx(ctx, nil))(t)
		locks, err := locksqlc.Join(ctx, tx)
		if err == nil {
			_, err = locks.Lock(ctx, key)
		}
		fatal(t, err)
		other := faultPool(t, db, network{}, guarded)
		free := func() error {
			return locksqlc.Run(ctx, other, nil, func(tx *sql.Tx) error {
				locks, err := locksqlc.Join(ctx, tx)
				if err != nil {
					return err
				}
				_, err = locks.TryLock(ctx, key)
				return err
			})
		}
		wants(t, "TryLock beside it", free(), txlock.ErrBusy)
		fatal(t, testdb.Err(tx.ExecContext(ctx, "SET SESSION wait_timeout = 1")))
		testdb.FatalIf(t, !testdb.Await(15*time.Second+delays(), func() bool { return free() == nil }), "the lock is still held")
		testdb.Fails(t, "a statement", testdb.Err(tx.ExecContext(ctx, "DO 1")))
		wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
	})
}

// onEmptyDatabases runs a test in a database without tables, on each server, with the files
// of the DDL that docs/how-to/install.md names for it. Afterwards all must be there.
func onEmptyDatabases(t *testing.T, test func(t *testing.T, db *testdb.DB, files []string)) {
	t.Helper()
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		files := []string{"0001_lockstep.sql", "0002_centers.sql", "0003_once.sql", "0004_jobs.sql"}
		if engine == testdb.MySQL {
			files = append(files, "mysql/0005_procedures.sql")
		}
		test(t, db, files)
		fatal(t, schema.Check(t.Context(), db.Admin()))
	})
}

// ddl returns a file of the DDL.
func ddl(t *testing.T, name string) string {
	t.Helper()
	return string(testdb.Got(fs.ReadFile(schema.FS, name))(t))
}

// named fails the test unless docs/how-to/install.md has these words.
func named(t *testing.T, words ...string) {
	t.Helper()
	text := testdb.Got(os.ReadFile("../docs/how-to/install.md"))(t)
	for _, w := range words {
		testdb.ErrorIf(t, !strings.Contains(string(text), "`"+w+"`"), "docs/how-to/install.md doesn't say `%s`", w)
	}
}

func TestGoose(t *testing.T) {
	const first = "-- +goose Up"
	named(t, first)
	onEmptyDatabases(t, func(t *testing.T, db *testdb.DB, files []string) {
		dir := fstest.MapFS{}
		for _, name := range files {
			dir[strings.TrimPrefix(name, "mysql/")] = &fstest.MapFile{Data: []byte(first + "\n" + ddl(t, name))}
		}
		provider := testdb.Got(goose.NewProvider(goose.DialectMySQL, db.Admin(), dir, goose.WithDisableGlobalRegistry(true)))(t)
		done, err := provider.Up(t.Context())
		testdb.ErrorIf(t, err != nil || len(done) != len(files), "%d migrations, %v, want %d", len(done), err, len(files))
	})
}

func TestGolangMigrate(t *testing.T) {
	ups := []string{"000010_lockstep.up.sql", "000011_lockstep_centers.up.sql", "000012_lockstep_once.up.sql", "000013_lockstep_jobs.up.sql", "000014_lockstep_procedures.up.sql"}
	downs := map[string]string{
		"000010_lockstep.down.sql":      "DROP TABLE lockstep_locks, lockstep_centers, lockstep_leases;",
		"000012_lockstep_once.down.sql": "DROP TABLE lockstep_once;",
		"000013_lockstep_jobs.down.sql": "DROP TABLE lockstep_jobs;",
	}
	named(t, ups...)
	for _, text := range downs {
		named(t, text)
	}
	onEmptyDatabases(t, func(t *testing.T, db *testdb.DB, files []string) {
		dir := fstest.MapFS{}
		for i, name := range files {
			dir[ups[i]] = &fstest.MapFile{Data: []byte(ddl(t, name))}
		}
		for name, text := range downs {
			dir[name] = &fstest.MapFile{Data: []byte(text)}
		}
		source := testdb.Got(iofs.New(dir, "."))(t)
		url := "mysql://" + db.AdminDSN(func(c *mysql.Config) { c.MultiStatements = true })
		m := testdb.Got(migrate.NewWithSourceInstance("iofs", source, url))(t)
		defer func() {
			if sourceErr, err := m.Close(); sourceErr != nil || err != nil {
				t.Error(sourceErr, err)
			}
		}()
		for _, step := range []func() error{m.Up, m.Down, m.Up} {
			fatal(t, step())
		}
	})
}

// TestAtlas has Atlas read the files as it reads those of a migration directory.
func TestAtlas(t *testing.T) {
	const first = "-- atlas:delimiter -- +goose StatementEnd"
	named(t, first)
	onEmptyDatabases(t, func(t *testing.T, db *testdb.DB, files []string) {
		for _, name := range files {
			text := ddl(t, name)
			if strings.HasPrefix(name, "mysql/") {
				text = first + "\n\n" + text
			}
			statements := testdb.Got(atlas.NewLocalFile(name, []byte(text)).Stmts())(t)
			for _, s := range statements {
				wants(t, fmt.Sprintf("%s: %q", name, s), testdb.Err(db.Admin().ExecContext(t.Context(), s)), nil)
			}
		}
	})
}

// TestHolderIsToldFirst proves that a holder whose server can't be reached, or doesn't answer, is told that its lease is lost before
// anybody else gets it: by Err at every moment, by Done and Context soon after.
func TestHolderIsToldFirst(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, begin := range map[string]func(network) error{"unreachable": network.Down, "hung": network.Hang} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				n, key := newNetwork(t, db), txlock.Named("validity:"+rand.Text())
				holder := faultManager(t, faultPool(t, db, n, guarded), lease.TTL(6*time.Second))
				other := faultManager(t, faultPool(t, db, network{}, guarded))
				l := testdb.Got(holder.Acquire(t.Context(), key))(t)
				expiry := func() int64 {
					return count(t, db.Admin(), "SELECT expires_us FROM lockstep_leases WHERE name = ?", key.String())
				}
				before := expiry()
				testdb.FatalIf(t, !testdb.Await(time.Minute, func() bool { return expiry() > before }), "the lease is not renewed")
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
				fatal(t, begin(n))
				ctx := leasetest.Limited(t, time.Minute)
				next, err := other.Acquire(ctx, key)
				for err != nil && ctx.Err() == nil { // of a server that doesn't answer
					next, err = other.Acquire(ctx, key)
				}
				granted := time.Now()
				fatal(t, err)
				last := <-lastValid
				testdb.ErrorIf(t, !last.Before(granted), "valid %v after somebody else was granted the lease", last.Sub(granted))
				leasetest.Higher(t, next, l)
				for what, done := range map[string]<-chan struct{}{"Done": l.Done(), "Context": working.Done()} {
					select {
					case <-done:
					case <-time.After(5 * time.Second):
						t.Errorf("%s does not end", what)
					}
				}
				for what, err := range map[string]error{"Err": l.Err(), "cause": context.Cause(working)} {
					wants(t, what, err, txlock.ErrLost)
					testdb.Fails(t, what, err, "its TTL expired and it was not renewed")
				}
			})
		}
	}
}

// TestVanishedGuard proves that a client that vanishes between Guard and COMMIT keeps the lease no longer than its TTL and the grace of
// 5 seconds, and that its transaction is rolled back.
func TestVanishedGuard(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, wrap := range map[string]func(driver.Connector) driver.Connector{"guarded": guarded, "plain": func(c driver.Connector) driver.Connector { return c }} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				table, key := db.CreateTable(t, "vanished", "id BIGINT PRIMARY KEY"), txlock.Named("vanished:"+rand.Text())
				n := newNetwork(t, db)
				pool := faultPool(t, db, n, wrap)
				holder := faultManager(t, pool, lease.TTL(10*time.Second))
				other := faultManager(t, faultPool(t, db, network{}, guarded))
				tx := testdb.Got(pool.BeginTx(context.Background(), nil))(t)
				fatal(t, testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)")))
				l := testdb.Got(holder.Acquire(t.Context(), key))(t)
				fatal(t, errors.Join(l.Guard(t.Context(), tx), n.Hang()))
				next, err := other.Acquire(t.Context(), key, lease.WaitAtMost(60*time.Second))
				if wants(t, "the lease of a client that has vanished", err, nil); err == nil {
					wants(t, "Release", next.Release(t.Context()), nil)
				}
				fatal(t, n.Down())
				testdb.Fails(t, "Commit", tx.Commit())
				testdb.Equal(t, "rows that were committed", count(t, db.Admin(), "SELECT COUNT(*) FROM "+table), 0)
			})
		}
	}
}

// TestReleasesOverNewConnection proves that an acquire whose caller and connection are gone is released, over a network so
// slow that a new connection takes longer than a release on one that is there, and after a server that refuses connections.
func TestReleasesOverNewConnection(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		n := newNetwork(t, db)
		held := leave(t, db, n)
		account := func(state string) {
			user := "'" + db.Config().User + "'"
			db.Exec(t, "ALTER USER "+user+"@'%', "+user+"@'localhost' ACCOUNT "+state)
		}
		account("LOCK")
		n.Cut(1)
		dials := n.Dials.Load()
		testdb.ErrorIf(t, !testdb.Await(time.Minute, func() bool { return n.Dials.Load() > dials+2 }), "nobody tries to release the lease any more")
		account("UNLOCK")
		testdb.ErrorIf(t, !testdb.Await(time.Minute, func() bool { return !held() }), "the lease is held by nobody")
		n.Heal()
	})
}

// leave makes an attempt whose caller leaves when the server has granted the lease, and before
// that is known: what comes from the server is slow. It returns what tells whether it is held.
func leave(t *testing.T, db *testdb.DB, n network) (held func() bool) {
	t.Helper()
	m := faultManager(t, faultPool(t, db, n, guarded), lease.TTL(5*time.Minute))
	l := testdb.Got(m.Acquire(t.Context(), txlock.Named("warm:"+rand.Text())))(t) // which reads the server's clock and prepares the statements
	fatal(t, l.Release(t.Context()))
	fatal(t, n.Slow("downstream", 2500*time.Millisecond, 2500*time.Millisecond))
	for range 5 { // where the machine is slower than the network, it is known
		key := txlock.Named("ghost:" + rand.Text())
		fatal(t, testdb.Err(db.Admin().Exec("INSERT INTO lockstep_leases VALUES (?, 0, '-', '', 0, 0, 0, 0, 0, 0, '', 0, '', 0)", key.String())))
		held = func() bool {
			return count(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND holders <> ''", key.String()) > 0
		}
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() {
			var err error
			l, err = m.TryAcquire(ctx, key)
			answered <- err
		}()
		granted := testdb.Await(time.Minute, held)
		cancel()
		err := <-answered
		testdb.FatalIf(t, !granted, "the lease was not granted: %v", err)
		if errors.Is(err, context.Canceled) {
			return held
		}
		fatal(t, err)
		fatal(t, l.Release(t.Context()))
	}
	t.Fatal("each answer has come before its caller left")
	return nil
}

// TestToldIsDurable proves that what a second caller was told, of a key of Once and of a tick, is there after the server was
// killed. A MariaDB without a binary log shows a transaction before its COMMIT is written, which a seal makes up for.
func TestToldIsDurable(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Durable()).OpenLeases(t)
		for kill := range testdb.Long(1, 20) {
			asks, end := tellers(t, db)
			told := toldUntilKilled(t, db, kill, asks)
			end()
			// MariaDB 10.11 aborts at times while it recovers, in its purge: then it is started once more.
			err := db.Server().Restart(context.Background())
			for i := 0; i < 2 && err != nil; i++ {
				t.Log(err)
				err = db.Server().Restart(context.Background())
			}
			fatal(t, err)
			asks, end = tellers(t, db)
			for i, keys := range told {
				lost := 0
				for _, key := range keys {
					if testdb.Got(asks[i](t.Context(), key))(t) {
						lost++
					}
				}
				testdb.ErrorIf(t, lost > 0 || len(keys) == 0, "%d of %d answers are lost", lost, len(keys))
			}
			end()
		}
	})
}

// teller tells who asks whether it is the first that does what a key stands for.
type teller func(ctx context.Context, key txlock.Key) (first bool, err error)

// tellers tell of keys of Once and of ticks, by a pool of their own.
func tellers(t *testing.T, db *testdb.DB) (asks [2]teller, end func()) {
	t.Helper()
	pool := faultPool(t, db, network{}, guarded)
	pool.SetMaxIdleConns(90)
	leases := faultManager(t, pool, lease.PurgeEvery(0, time.Hour))
	jobs := testdb.Got(job.New(pool, leases))(t)
	once := func(ctx context.Context, key txlock.Key) (bool, error) {
		return locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { return nil })
	}
	tick := func(ctx context.Context, key txlock.Key) (bool, error) {
		return jobs.TickTx(ctx, key, time.Unix(1, 0), func(context.Context, *sql.Tx, time.Time) error { return nil })
	}
	return [2]teller{once, tick}, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := errors.Join(jobs.Close(ctx), leases.Close(ctx))
		if closed := pool.Close(); errors.Join(err, closed) != nil {
			t.Logf("close: %v", errors.Join(err, closed)) // of a server that was killed
		}
	}
}

// toldUntilKilled asks for many keys, three times each at once, kills the server when 150 callers of each kind were told that another
// was the first, and returns their keys.
func toldUntilKilled(t *testing.T, db *testdb.DB, kill int, asks [2]teller) (told [2][]txlock.Key) {
	t.Helper()
	var mu sync.Mutex
	next := [90]int{}
	load.Beside(len(next), func(i int) {
		kind := i % len(asks)
		key := txlock.Named(fmt.Sprintf("told:%d:%d:%d", kill, i/6, next[i]))
		next[i]++
		if first, err := asks[kind](t.Context(), key); err == nil && !first {
			mu.Lock()
			told[kind] = append(told[kind], key)
			mu.Unlock()
		}
	}, func() {
		for enough := false; !enough; time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			enough = len(told[0]) >= 150 && len(told[1]) >= 150
			mu.Unlock()
		}
		wants(t, "kill", db.Server().Kill(), nil)
	})
	return told
}
