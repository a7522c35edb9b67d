package mistakes

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

func lock(key func() txlock.Key) func(*shop) error {
	return func(s *shop) error { return testdb.Err(s.begin().Lock(s.ctx, key())) }
}

var ofKeys = []mistake{
	{"the record was not saved, so its identifier is 0", lock(func() txlock.Key { return txlock.NewFamily[int64]("order").Key(0) }), txlock.ErrInvalidKey, []string{"the zero identifier: the record has none yet"}, goesOn},
	{"a name is empty", lock(func() txlock.Key { return txlock.Named("") }), txlock.ErrInvalidKey, []string{"the name is empty"}, goesOn},
	{"the identifier of a cart is empty", lock(func() txlock.Key { return txlock.NewFamily[string]("cart", txlock.Hashed(), txlock.Exact()).Key("") }), txlock.ErrInvalidKey, []string{"the zero identifier: the record has none yet"}, goesOn},
	{"a name is longer than 255 bytes", lock(func() txlock.Key { return txlock.Named(strings.Repeat("x", 256)) }), txlock.ErrInvalidKey, []string{"the name has 256 bytes, 255 are allowed"}, goesOn},
	{"a key was declared and never made", lock(func() txlock.Key { return txlock.Key{} }), txlock.ErrInvalidKey, []string{"make keys with Named or a Family"}, goesOn},
	{"a name begins with @, as those of namespaces", lock(func() txlock.Key { return txlock.Named("@shop") }), txlock.ErrInvalidKey, []string{"names that begin with @ are those of a Namespace"}, goesOn},
	{"the name of a namespace has a slash", lock(func() txlock.Key { return txlock.Namespace("a/b").Named("x") }), txlock.ErrInvalidKey, []string{`the namespace "a/b" has a slash`}, goesOn},
	{"a family of strings says nothing of how its column compares", lock(func() txlock.Key { return txlock.NewFamily[string]("user").Key("bob") }), txlock.ErrInvalidKey, []string{"txlock.Fold", "txlock.Exact"}, goesOn},
	{"a string can't be folded as its column does", lock(func() txlock.Key {
		return txlock.NewFamily[string]("user", txlock.Fold("utf8mb4_0900_ai_ci")).Key("Zoë")
	}), txlock.ErrInvalidKey, []string{"make the column VARBINARY"}, goesOn},
	{"LockAll has no keys", func(s *shop) error { return testdb.Err(s.begin().LockAll(s.ctx)) }, txlock.ErrInvalidKey, []string{"no key was given"}, goesOn},
	{"Run is given an empty list of keys", func(s *shop) error {
		return locksqlc.Run(s.ctx, s.pool, txlock.NewFamily[int64]("order").Keys(), func(*sql.Tx) error { return nil })
	}, txlock.ErrInvalidKey, []string{"Run was given no key", "pass nil if its function acquires the locks"}, none},
	{"Transaction is given an empty list of keys", func(s *shop) error {
		return lockgorm.Transaction(s.gorm(), txlock.NewFamily[int64]("order").Keys(), func(*gorm.DB) error { return nil })
	}, txlock.ErrInvalidKey, []string{"Transaction was given no key", "pass nil if its function acquires the locks"}, none},
	{"LockAny has no keys", func(s *shop) error { return testdb.Err(s.begin().LockAny(s.ctx)) }, txlock.ErrInvalidKey, []string{"no key was given"}, goesOn},
	{"a limit is 0", func(s *shop) error { return testdb.Err(s.begin().WaitAtMost(0).Lock(s.ctx, s.order)) }, txlock.ErrInvalidOption, []string{"the limit must be positive, use TryLock to not wait at all"}, goesOn},
	{"the cleaning of rows that are too young is asked for", func(s *shop) error { return testdb.Err(txlock.Purge(s.ctx, s.pool, -time.Hour)) }, txlock.ErrInvalidOption, []string{"the time must be positive"}, none},
}

var ofTransactions = []mistake{
	{"the transaction is nil", func(s *shop) error { return testdb.Err(locksqlc.Join(s.ctx, nil)) }, txlock.ErrNoTransaction, []string{"no open transaction", "the *sql.Tx is nil"}, none},
	{"the transaction is joined after its Commit", func(s *shop) error {
		tx := s.beginOn(s.pool)
		s.must(tx.Commit())
		return testdb.Err(locksqlc.Join(s.ctx, tx))
	}, txlock.ErrNoTransaction, []string{"no open transaction", "already been committed or rolled back"}, none},
	{"a lock is asked for after Commit", func(s *shop) error {
		scope := s.begin()
		s.must(s.tx.Commit())
		return testdb.Err(scope.Lock(s.ctx, s.order))
	}, txlock.ErrNoTransaction, []string{"the transaction has been committed or rolled back"}, none},
	{"a plain pool is used where a guarded one is meant", func(s *shop) error {
		s.tx, s.reads = s.beginOn(s.db.Connect(s)), true
		return testdb.Err(locksqlc.Join(s.ctx, s.tx, txlock.RequireGuarded()))
	}, txlock.ErrUnguarded, []string{"the pool is not guarded", "open it with locksqlc.Open"}, goesOn},
	{"another transaction has the lock, and TryLock doesn't wait", func(s *shop) error {
		s.other(s.order)
		return testdb.Err(s.begin().TryLock(s.ctx, s.order))
	}, txlock.ErrBusy, []string{"lock not available"}, goesOn},
	{"another transaction has the lock for longer than the limit", func(s *shop) error {
		s.other(s.order)
		return testdb.Err(s.begin().WaitAtMost(50*time.Millisecond).Lock(s.ctx, s.order))
	}, txlock.ErrWaitTimeout, []string{"timed out waiting for the lock", "retry later"}, goesOn},
	{"the context ends while a lock is waited for", func(s *shop) error {
		s.other(s.order)
		scope := s.begin()
		ctx, cancel := context.WithCancel(s.ctx)
		ended, id := make(chan error, 1), testdb.ConnID(s, s.tx)
		go func() { ended <- testdb.Err(scope.Lock(ctx, s.order)) }()
		s.db.WaitForLockWait(s, id)
		cancel()
		return <-ended
	}, context.Canceled, []string{"context canceled", "the transaction has ended on the server"}, isOver},
	{"the record is read first and locked afterwards", func(s *shop) error {
		s.must(txlock.Ensure(s.ctx, s.pool, s.order))
		scope := s.begin()
		var notes int
		s.must(s.tx.QueryRowContext(s.ctx, "SELECT COUNT(*) FROM notes").Scan(&notes))
		tx, _ := s.other(s.order)
		s.must(tx.Commit())
		return testdb.Err(scope.Lock(s.ctx, s.order))
	}, txlock.ErrStaleSnapshot, []string{"roll back and retry, as Run does", "lock before the first SELECT"}, mustNot},
	{"two transactions lock one by one, in different orders", deadlock, txlock.ErrDeadlock, []string{"the server rolled the transaction back", "retry it, as Run does", "lock several keys with LockAll"}, isOver},
	{"a deadlock is ignored, and the transaction continues", func(s *shop) error {
		_ = deadlock(s)
		return testdb.Err(s.tx.ExecContext(s.ctx, "INSERT INTO notes VALUES ('after a deadlock')"))
	}, txlock.ErrTxDoomed, []string{"the transaction has ended on the server; roll back", "an earlier statement failed"}, isOver},
	{"a deadlock is ignored, and the transaction is committed", func(s *shop) error {
		_ = deadlock(s)
		return s.tx.Commit()
	}, txlock.ErrTxDoomed, []string{"the transaction has ended on the server", "LockAll"}, rolledBack},
	{"a table is made in the transaction", func(s *shop) error {
		scope := s.begin()
		s.must(testdb.Err(scope.Lock(s.ctx, s.order)))
		s.must(testdb.Err(s.tx.ExecContext(s.ctx, fmt.Sprintf("CREATE TABLE made%d (id INT)", s.id))))
		return s.tx.Commit()
	}, txlock.ErrTxDoomed, []string{`it was committed before its end by the statement "CREATE TABLE MADE`, "which has freed the locks"}, committed},
	{"BEGIN is sent as text in the transaction", func(s *shop) error {
		scope := s.begin()
		s.must(testdb.Err(scope.Lock(s.ctx, s.order)))
		s.must(testdb.Err(s.tx.ExecContext(s.ctx, "BEGIN")))
		return testdb.Err(scope.Lock(s.ctx, s.order))
	}, txlock.ErrTxDoomed, []string{`it was committed before its end by the statement "BEGIN"`}, committed},
	{"a lock that is held shared is asked for exclusively", func(s *shop) error {
		scope := s.begin()
		s.must(testdb.Err(scope.RLock(s.ctx, s.order)))
		return testdb.Err(scope.Lock(s.ctx, s.order))
	}, txlock.ErrUpgrade, []string{"lock it exclusively from the start"}, goesOn},
	{"rows are open when a lock is asked for", func(s *shop) error {
		scope := s.begin()
		s.must(testdb.Err(s.tx.ExecContext(s.ctx, "INSERT INTO notes VALUES (?), (?)", fmt.Sprint("row a", s.id), fmt.Sprint("row b", s.id))))
		rows := testdb.Got(s.tx.QueryContext(s.ctx, "SELECT text FROM notes"))(s)
		rows.Next()
		_, err := scope.Lock(s.ctx, s.order)
		s.must(rows.Close())
		s.must(rows.Err())
		return err
	}, txlock.ErrOpenRows, []string{"close them, or read them to the end, before a lock"}, goesOn},
	{"the transaction is read only", func(s *shop) error {
		tx := testdb.Got(s.pool.BeginTx(s.ctx, &sql.TxOptions{ReadOnly: true}))(s)
		s.Cleanup(func() { _ = tx.Rollback() })
		s.tx, s.reads = tx, true
		scope := testdb.Got(locksqlc.Join(s.ctx, tx))(s)
		return testdb.Err(scope.Lock(s.ctx, s.order))
	}, txlock.ErrReadOnly, []string{"connect to the primary, and begin without ReadOnly", "the transaction stays open"}, goesOn},
	{"code that needs a lock is called without it", func(s *shop) error {
		s.begin()
		return txlock.AssertLocked(s.ctx, s.tx, s.order)
	}, txlock.ErrNotHeld, []string{"lock it before this call, and again after a ROLLBACK TO SAVEPOINT"}, goesOn},
	{"a form is saved that another user has changed meanwhile", func(s *shop) error {
		version := testdb.Got(txlock.ReadVersion(s.ctx, s.pool, s.order))(s)
		tx, _ := s.other(s.order)
		s.must(tx.Commit())
		return s.begin().CompareAndBump(s.ctx, s.order, version)
	}, txlock.ErrConflict, []string{"the version has changed", "roll back, then read and show the record again"}, goesOn},
	{"one key of Once is used for two requests", func(s *shop) error {
		scope := s.begin()
		s.must(testdb.Err(scope.Once(s.ctx, s.order, txlock.Fingerprint([]byte("10 euros")))))
		s.must(s.tx.Commit())
		return testdb.Err(s.begin().Once(s.ctx, s.order, txlock.Fingerprint([]byte("1000 euros"))))
	}, txlock.ErrMismatch, []string{"use a new key for a new request", "the transaction stays open"}, goesOn},
	{"a value of Once is no JSON", func(s *shop) error {
		_, _, err := locksqlc.OnceValue(s.ctx, s.pool, s.order, func(*sql.Tx) (chan int, error) { return make(chan int), nil })
		return err
	}, txlock.ErrResult, []string{"it is not valid JSON"}, none},
	{"a value of Once is read again as another type", func(s *shop) error {
		_, _, err := locksqlc.OnceValue(s.ctx, s.pool, s.order, func(*sql.Tx) (string, error) { return "ten", nil })
		s.must(err)
		_, _, err = locksqlc.OnceValue(s.ctx, s.pool, s.order, func(*sql.Tx) (int, error) { return 10, nil })
		return err
	}, txlock.ErrResult, []string{"it is of type string, not int"}, none},
}

// deadlock makes one, whose victim is the transaction of the mistake.
func deadlock(s *shop) error {
	a, b := s.order, txlock.Named(fmt.Sprint("other of ", s.order))
	s.must(txlock.Ensure(s.ctx, s.pool, a, b))
	for range 5 { // the server chooses the victim
		other, theirs := s.other(a)
		s.must(testdb.Err(other.ExecContext(s.ctx, "INSERT INTO notes SELECT CONCAT(seq.n, '"+s.Name()+"') FROM (SELECT 1 n UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5) seq")))
		mine := s.begin()
		s.must(testdb.Err(mine.Lock(s.ctx, b)))
		waits := make(chan error, 1)
		id := testdb.ConnID(s, other)
		go func() { waits <- testdb.Err(theirs.Lock(s.ctx, b)) }()
		s.db.WaitForLockWait(s, id)
		err := testdb.Err(mine.Lock(s.ctx, a))
		if err != nil {
			s.must(<-waits)
			s.must(other.Rollback())
			return err
		}
		err = <-waits
		testdb.FatalIf(s, err == nil, "nobody was the victim")
		_, _ = other.Rollback(), s.tx.Rollback()
	}
	s.Fatal("five times the other transaction was the victim")
	return nil
}

var ofServers = []mistake{
	{"the tables were never made", func(s *shop) error {
		pool := s.open(testdb.Fresh(s, s.db.Engine()).AdminDSN())
		return locksqlc.Run(s.ctx, pool, []txlock.Key{s.order}, func(*sql.Tx) error { return nil })
	}, txlock.ErrSchema, []string{"run schema.Install(ctx, db)", "lockstep_locks"}, none},
	{"a table is missing when Check looks", func(s *shop) error {
		return schema.Check(s.ctx, testdb.Fresh(s, s.db.Engine()).Admin())
	}, schema.ErrTable, []string{"lockstep_locks is missing in this database", "run schema.Install"}, none},
	{"the user may not write the tables", func(s *shop) error {
		db := s.elsewhere()
		for _, host := range []string{"%", "localhost"} {
			db.Exec(s, fmt.Sprintf("GRANT SELECT ON lockstep_locks TO '%s'@'%s'", db.Config().User, host))
		}
		return locksqlc.Run(s.ctx, s.open(db.DSN()), []txlock.Key{s.order}, func(*sql.Tx) error { return nil })
	}, txlock.ErrPrivilege, []string{"GRANT SELECT, INSERT, UPDATE, DELETE ON lockstep_locks TO"}, none},
	{"the DSN has autocommit=0", func(s *shop) error {
		return locksqlc.Run(s.ctx, s.open(s.dsn(param("autocommit", "0"))), []txlock.Key{s.order}, func(*sql.Tx) error { return nil })
	}, schema.ErrAutocommit, []string{"remove that from the data source name and from init_connect"}, none},
	{"the DSN has a character_set_connection of its own", func(s *shop) error {
		return locksqlc.Run(s.ctx, s.open(s.dsn(param("character_set_connection", "utf16"))), []txlock.Key{s.order}, func(*sql.Tx) error { return nil })
	}, schema.ErrCharset, []string{"charset=utf8mb4 sets all"}, none},
	{"the readTimeout of the DSN is shorter than the wait", func(s *shop) error {
		s.other(s.order)
		pool := s.open(s.dsn(func(c *mysql.Config) { c.ReadTimeout = 2 * time.Second }))
		s.tx = s.beginOn(pool)
		scope := testdb.Got(locksqlc.Join(s.ctx, s.tx))(s)
		return testdb.Err(scope.Lock(s.ctx, s.order))
	}, txlock.ErrTxDoomed, []string{"it was rolled back with its connection", "the readTimeout of the data source name must be longer than the wait for a lock"}, isOver},
}

func param(name, value string) func(*mysql.Config) {
	return func(c *mysql.Config) {
		if c.Params == nil {
			c.Params = make(map[string]string)
		}
		c.Params[name] = value
	}
}

var ofLeases = []mistake{
	{"the pool of a manager is nil", func(*shop) error { return testdb.Err(lease.NewManager(nil)) }, nil, []string{"NewManager needs a *sql.DB, got nil"}, none},
	{"a TTL is too short", func(s *shop) error { return testdb.Err(lease.NewManager(s.pool, lease.TTL(time.Millisecond))) }, txlock.ErrInvalidOption, []string{"it must be from 10ms to 720h0m0s"}, none},
	{"a lease is renewed more seldom than twice in its TTL", func(s *shop) error {
		return testdb.Err(lease.NewManager(s.pool, lease.TTL(10*time.Second), lease.RenewEvery(6*time.Second)))
	}, txlock.ErrInvalidOption, []string{"is more than half of the TTL of 10s"}, none},
	{"the limit of a wait for a lease is 0", func(s *shop) error {
		return testdb.Err(s.manager().Acquire(s.ctx, s.order, lease.WaitAtMost(0)))
	}, txlock.ErrInvalidOption, []string{"the limit must be positive, use TryAcquire to not wait at all"}, none},
	{"a label is longer than 255 bytes", func(s *shop) error {
		return testdb.Err(s.manager().Acquire(s.ctx, s.order, lease.WithLabel(strings.Repeat("x", 256))))
	}, txlock.ErrInvalidOption, []string{"a label has at most 255 bytes, this one has 256"}, none},
	{"the key of a lease is empty", func(s *shop) error { return testdb.Err(s.manager().Acquire(s.ctx, txlock.Named(""))) }, txlock.ErrInvalidKey, []string{"the name is empty"}, none},
	{"another process has the lease, and TryAcquire doesn't wait", func(s *shop) error {
		s.must(testdb.Err(s.manager().Acquire(s.ctx, s.order)))
		return testdb.Err(s.manager().TryAcquire(s.ctx, s.order))
	}, txlock.ErrBusy, []string{"lock not available"}, none},
	{"another process has the lease for longer than the limit", func(s *shop) error {
		s.must(testdb.Err(s.manager(lease.WithLabel("the nightly report")).Acquire(s.ctx, s.order)))
		return testdb.Err(s.manager().Acquire(s.ctx, s.order, lease.WaitAtMost(2*time.Second)))
	}, txlock.ErrWaitTimeout, []string{"timed out waiting for the lock; retry later", "(the nightly report) had it since"}, none},
	{"a lease that was lost is released", func(s *shop) error {
		l := testdb.Got(s.manager().Acquire(s.ctx, s.order))(s)
		s.must(s.manager().ForceRelease(s.ctx, s.order))
		return l.Release(s.ctx)
	}, txlock.ErrNotHeld, []string{"the lock is not held"}, none},
	{"a transaction is guarded by a lease that is over", func(s *shop) error {
		l := testdb.Got(s.manager().Acquire(s.ctx, s.order))(s)
		s.must(l.Release(s.ctx))
		s.begin()
		return l.Guard(s.ctx, s.tx)
	}, txlock.ErrNotHeld, []string{"the lock is not held: it was released"}, goesOn},
	{"a transaction of another database is guarded", func(s *shop) error {
		l := testdb.Got(s.manager().Acquire(s.ctx, s.order))(s)
		s.tx, s.reads = s.beginOn(s.open(s.elsewhere().AdminDSN())), true
		return l.Guard(s.ctx, s.tx)
	}, lease.ErrOtherDatabase, []string{"guard a transaction in the manager's own database"}, goesOn},
	{"a transaction is guarded after its Commit", func(s *shop) error {
		l := testdb.Got(s.manager().Acquire(s.ctx, s.order))(s)
		tx := s.beginOn(s.pool)
		s.must(tx.Commit())
		return l.Guard(s.ctx, tx)
	}, txlock.ErrNoTransaction, []string{"no open transaction"}, none},
	{"a lease is asked of a manager that is closed", func(s *shop) error {
		m := s.manager()
		s.must(m.Close(s.ctx))
		return testdb.Err(m.Acquire(s.ctx, s.order))
	}, lease.ErrClosed, []string{"the manager is closed"}, none},
	{"a reader asks for the lease exclusively", func(s *shop) error {
		m, ctx := s.manager(), lease.WithOwner(s.ctx, s.Name())
		s.must(testdb.Err(m.AcquireShared(ctx, s.order)))
		return testdb.Err(m.Acquire(ctx, s.order))
	}, txlock.ErrUpgrade, []string{"release that first, or acquire it exclusively from the start"}, none},
	{"a semaphore has no permits", func(s *shop) error { return testdb.Err(s.manager().Semaphore(s.order, 0)) }, txlock.ErrInvalidOption, []string{"it has 1 to 1000 permits"}, none},
	{"a semaphore has another number than it was made with", func(s *shop) error {
		s.must(testdb.Err(s.permit(3).TryAcquire(s.ctx)))
		return testdb.Err(s.permit(4).TryAcquire(s.ctx))
	}, txlock.ErrInvalidOption, []string{"use Resize to change that"}, none},
	{"the key of a semaphore is that of a shared lease", func(s *shop) error {
		s.must(testdb.Err(s.manager().AcquireShared(s.ctx, s.order)))
		return testdb.Err(s.permit(3).TryAcquire(s.ctx))
	}, txlock.ErrInvalidKey, []string{"is used for a shared lease: use another key"}, none},
	{"a holder is asked where there is none", func(s *shop) error { return s.manager().RequestRelease(s.ctx, s.order, "deployment") }, txlock.ErrNotHeld, []string{"the lock is not held"}, none},
	{"a lease is taken away that nobody holds", func(s *shop) error { return s.manager().ForceRelease(s.ctx, s.order) }, txlock.ErrNotHeld, []string{"the lock is not held"}, none},
	{"a majority is made of two databases", func(s *shop) error {
		return testdb.Err(quorum.New([]*lease.Manager{s.manager(), s.manager()}))
	}, txlock.ErrInvalidOption, []string{"New needs 3, 5, 7 or 9 managers, got 2"}, none},
}

func (s *shop) permit(n int) *lease.Semaphore {
	s.Helper()
	return testdb.Got(s.manager().Semaphore(s.order, n))(s)
}

// jobs makes Jobs.
func (s *shop) jobs() *job.Jobs {
	s.Helper()
	j := testdb.Got(job.New(s.pool, s.manager()))(s)
	s.Cleanup(func() { _ = j.Close(context.WithoutCancel(s.ctx)) })
	return j
}

func nothing(context.Context, time.Time) error { return nil }

var ofJobs = []mistake{
	{"a line of cron has four fields", func(s *shop) error { return s.jobs().Run(s.ctx, s.order, job.Cron("0 2 * *"), nothing) }, txlock.ErrInvalidOption, []string{"expected 5 to 6 fields, found 4"}, none},
	{"a line of cron says @every", func(s *shop) error { return s.jobs().Run(s.ctx, s.order, job.Cron("@every 1m"), nothing) }, txlock.ErrInvalidOption, []string{"intervals depend on when they begin: use Every"}, none},
	{"the time between two ticks is 0", func(s *shop) error { return s.jobs().Run(s.ctx, s.order, job.Every(0), nothing) }, txlock.ErrInvalidOption, []string{"it must be at least 1ms, and whole microseconds"}, none},
	{"a tick of tomorrow is begun today", func(s *shop) error {
		return testdb.Err(s.jobs().Tick(s.ctx, s.order, time.Now().Add(24*time.Hour), nothing))
	}, job.ErrEarly, []string{"scheduled time is ahead of the server's clock"}, none},
	{"a tick of yesterday is begun after that of today", func(s *shop) error {
		j := s.jobs()
		s.must(testdb.Err(j.Tick(s.ctx, s.order, time.Now().Add(-time.Minute), nothing)))
		return testdb.Err(j.Tick(s.ctx, s.order, time.Now().Add(-24*time.Hour), nothing))
	}, job.ErrPast, []string{"a later tick was started", "is older"}, none},
	{"a tick is claimed that was done", func(s *shop) error {
		j, at := s.jobs(), time.Now().Add(-time.Minute)
		s.must(testdb.Err(j.Tick(s.ctx, s.order, at, nothing)))
		return testdb.Err(j.Claim(s.ctx, s.order, at))
	}, job.ErrDone, []string{"tick already done"}, none},
	{"Jobs are used after Close", func(s *shop) error {
		j := s.jobs()
		s.must(j.Close(s.ctx))
		return testdb.Err(j.Tick(s.ctx, s.order, time.Now(), nothing))
	}, job.ErrClosed, []string{"job: closed"}, none},
	{"the grace of an election is longer than half of its TTL", func(s *shop) error {
		return testdb.Err(elect.New(s.manager(), s.order, elect.TTL(10*time.Second), elect.Grace(9*time.Second)))
	}, txlock.ErrInvalidOption, []string{"is more than half of the TTL of 10s"}, none},
	{"the leader is asked for while nobody leads", func(s *shop) error {
		e := testdb.Got(elect.New(s.manager(), s.order))(s)
		return testdb.Err(e.Leader(s.ctx))
	}, elect.ErrNoLeader, []string{"no leader"}, none},
}

// Models of a program that uses the plugin.
type (
	Parcel struct {
		ID int64 `lockstep:"parcel"`
		N  int64
	}
	Article struct {
		ID      int64
		Text    string
		Version lockgorm.Version
	}
	User struct {
		Name string `gorm:"primaryKey;type:varchar(50)" lockstep:"user"`
		N    int64
	}
)

var ofGORM = []mistake{
	{"lockgorm.Lock is called with the pool", func(s *shop) error { return testdb.Err(lockgorm.Lock(s.gorm(), s.order)) }, txlock.ErrNoTransaction, []string{"this *gorm.DB is a pool: use the handle that Transaction or Begin gave"}, none},
	{"an update of a locked model is by a random number", func(s *shop) error {
		return s.gorm().Model(&Parcel{}).Where("n > RAND()").Update("n", 0).Error
	}, txlock.ErrInvalidKey, []string{"its conditions call RAND", "name the keys by Clauses(lockgorm.On(...))"}, none},
	{"a tag is over a column that takes several spellings for one", func(s *shop) error {
		return s.gorm().Create(&User{Name: "Bob"}).Error
	}, txlock.ErrInvalidKey, []string{"such as Bob and bob", "or give it a binary collation"}, none},
	{"a model with a version was not loaded", func(s *shop) error {
		return s.gorm().Model(&Article{}).Where("id = ?", s.id).Update("text", "new").Error
	}, lockgorm.ErrVersion, []string{"change loaded models one by one or as a slice, or add Clauses(lockgorm.AnyVersion)"}, none},
	{"a model with a version is saved that another transaction has changed", func(s *shop) error {
		db := s.gorm()
		s.must(db.Create(&Article{ID: s.id, Text: "first"}).Error)
		var mine, theirs Article
		s.must(db.Take(&mine, s.id).Error)
		s.must(db.Take(&theirs, s.id).Error)
		s.must(db.Model(&theirs).Update("text", "theirs").Error)
		return db.Model(&mine).Update("text", "mine").Error
	}, txlock.ErrConflict, []string{"roll back, then read and show the record again", "another transaction changed it"}, none},
}
