package migrate

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"regexp"
	"testing"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// onServers runs a test in a database of its own on each server, with a guarded pool.
func onServers(t *testing.T, test func(t *testing.T, server *testdb.DB, db *sql.DB)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		server := testdb.Shared(t, engine).OpenLeases(t)
		db := testdb.Got(locksqlc.Open(server.AdminDSN()))(t)
		t.Cleanup(func() { must(t, db.Close()) })
		test(t, server, db)
	})
}

var must, wants = testdb.Must, testdb.Wants

// The program that has both locks keeps out those with the old one and those with the new
// one, until its COMMIT, and leaves nothing on its connection.
func TestGetLock(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testdb.DB, db *sql.DB) {
		free := func() (free int) {
			must(t, db.QueryRowContext(t.Context(), "SELECT IS_FREE_LOCK('order-42')").Scan(&free))
			return free
		}
		unbearable := errors.New("unbearable")
		for _, result := range []error{nil, unbearable} {
			err := GetLock(t.Context(), db, 42, func(*sql.Tx) error {
				testdb.Equal(t, "whether GET_LOCK is free while the program works", free(), 0)
				wants(t, "another transaction", try(t.Context(), db), txlock.ErrBusy)
				return result
			})
			wants(t, "the result", err, result)
			err = try(t.Context(), db)
			testdb.ErrorIf(t, err != nil || free() != 1, "afterwards: %v, GET_LOCK is free: %d", err, free())
		}
	})
}

// try takes and releases the lock of order 42.
func try(ctx context.Context, db *sql.DB) error {
	return locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		locks, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		_, err = locks.TryLock(ctx, Orders.Key(42))
		return err
	})
}

// A node that has both keeps out the nodes of ShedLock, and those of lockstep.
func TestShedLock(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testdb.DB, db *sql.DB) {
		_, err := db.ExecContext(t.Context(), "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL,"+
			" locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL)")
		must(t, err)
		leases := testdb.Got(lease.NewManager(db))(t)
		t.Cleanup(func() { must(t, leases.Close(context.Background())) })
		report, ours, theirs := txlock.Named("report"), ShedLock(db, "report", "new"), ShedLock(db, "report", "old")
		for range 2 { // it is released in between
			must(t, Both(t.Context(), ours, leases, report, func(ctx context.Context, l *lease.Lease) error {
				_, err := theirs(ctx)
				wants(t, "a node of ShedLock", err, ErrTaken)
				_, err = leases.TryAcquire(t.Context(), report)
				wants(t, "a node of lockstep", err, txlock.ErrBusy)
				return l.Err()
			}))
		}
		release := testdb.Got(theirs(t.Context()))(t)
		defer release()
		wants(t, "behind a node of ShedLock", Both(t.Context(), ours, leases, report, nil), ErrTaken)
	})
}

// Programs of before, which compare the version and add one, and those with
// lockgorm.Version find each other's changes.
func TestArticle(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		_, err := pool.ExecContext(t.Context(), "CREATE TABLE articles (id BIGINT NOT NULL PRIMARY KEY, text VARCHAR(100) NOT NULL, version INT NOT NULL)")
		must(t, err)
		testdb.Got(pool.ExecContext(t.Context(), "INSERT INTO articles VALUES (7, 'first', 3)"))(t)
		page := testdb.Got(os.ReadFile("../../docs/how-to/migrate.md"))(t)
		block := regexp.MustCompile("(?s)```sql\n(.*?)```").FindSubmatch(page)
		testdb.Got(pool.ExecContext(t.Context(), string(block[1])))(t)
		db := testdb.Got(gorm.Open(mysql.New(mysql.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard}))(t)
		must(t, db.Use(lockgorm.New()))
		save := func(text string, version int64) (saved int64) {
			result, err := pool.ExecContext(t.Context(), "UPDATE articles SET text = ?, version = version + 1 WHERE id = 7 AND version = ?", text, version)
			must(t, err)
			saved = testdb.Got(result.RowsAffected())(t)
			return saved
		}
		var a Article
		must(t, db.Take(&a, 7).Error)
		testdb.Equal(t, "what the program of before saves", save("of before", 3), 1)
		a.Text = "of now"
		wants(t, "a save of what has changed", db.Save(&a).Error, txlock.ErrConflict)
		must(t, db.Take(&a, 7).Error)
		must(t, db.Save(&a).Error)
		testdb.Equal(t, "what the program of before saves over the new one", save("of before", 4), 0)
		var seen int64
		must(t, pool.QueryRowContext(t.Context(), "SELECT version FROM articles WHERE id = 7").Scan(&seen))
		testdb.Equal(t, "what the program of before saves of what it has read", save("of before", seen), 1)
	})
}
