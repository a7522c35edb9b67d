package lockxorm_test

import (
	"errors"
	"sync"
	"testing"

	"xorm.io/xorm"

	lockxorm "github.com/dca00107/lockstep/contrib/xorm"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// Piece is a row of the table piece.
type Piece struct {
	ID int64 `xorm:"pk 'id'"`
	N  int64 `xorm:"notnull 'n'"`
}

var pieces = txlock.NewFamily[int64]("xorm")

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestJoin proves that an engine which is opened by name has a guarded pool, that no sale is
// lost in its sessions, and what Join refuses.
func TestJoin(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			ctx, server := t.Context(), testdb.Open(t, engine)
			server.Exec(t, "CREATE TABLE piece (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
			server.Exec(t, "INSERT INTO piece VALUES (1, 40)")
			server.Grant(t, "piece")
			db, err := xorm.NewEngine(locksqlc.DriverName, server.DSN())
			check(t, err)
			t.Cleanup(func() { check(t, db.Close()) })
			check(t, txlock.CheckGuarded(ctx, db.DB().DB))

			sell := func() error {
				session := db.NewSession().Context(ctx)
				defer func() { _ = session.Close() }()
				if err := session.Begin(); err != nil {
					return err
				}
				locks, err := lockxorm.Join(ctx, session)
				if err != nil {
					return err
				}
				if _, err := locks.Lock(ctx, pieces.Key(1)); err != nil {
					return err
				}
				var p Piece
				if _, err := session.ID(1).Get(&p); err != nil {
					return err
				}
				p.N--
				if _, err := session.ID(1).Cols("n").Update(&p); err != nil {
					return err
				}
				return session.Commit()
			}
			var selling sync.WaitGroup
			for range 4 {
				selling.Go(func() {
					for range 10 {
						err := sell()
						for ; txlock.Retryable(err); err = sell() {
						}
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			selling.Wait()
			var p Piece
			_, err = db.ID(1).Get(&p)
			check(t, err)
			if p.N != 0 {
				t.Errorf("%d pieces are left, want none", p.N)
			}

			session := db.NewSession().Context(ctx)
			defer func() { check(t, session.Close()) }()
			refused := func(when string) {
				if _, err := lockxorm.Join(ctx, session); !errors.Is(err, txlock.ErrNoTransaction) {
					t.Errorf("Join %s: %v, want ErrNoTransaction", when, err)
				}
			}
			refused("before Begin")
			check(t, session.Begin())
			_, err = lockxorm.Join(ctx, session)
			check(t, err)
			check(t, session.Commit())
			refused("after Commit")
		})
	}
	if _, err := lockxorm.Join(t.Context(), nil); err == nil {
		t.Error("Join of no session has succeeded")
	}
}
