package ops_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

func begin(t *testing.T, pool *sql.DB) (*sql.Tx, *txlock.Scope) {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	scope, err := txlock.Join(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	return tx, scope
}

func TestX(t *testing.T) {
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			db := testdb.Open(t, engine)
			pool := db.Connect(t)
			family := txlock.NewFamily[int64]("order", txlock.Hashed)
			tx1, s1 := begin(t, pool)
			if _, err := s1.Lock(t.Context(), txlock.Named(t.Name()+"a")); err != nil {
				t.Fatal(err)
			}
			if _, err := s1.Lock(t.Context(), family.Key(42)); err != nil {
				t.Fatal(err)
			}
			_, s2 := begin(t, pool)
			if _, err := s2.RLock(t.Context(), txlock.Named(t.Name()+"b")); err != nil {
				t.Fatal(err)
			}
			tx3, s3 := begin(t, pool)
			if _, err := s3.Lock(t.Context(), txlock.Named(t.Name()+"c")); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			id := testdb.ConnID(t, tx3)
			done := make(chan error)
			go func() { _, err := s3.Lock(ctx, txlock.Named(t.Name()+"a")); done <- err }()
			db.WaitForLockWait(t, id)
			room := ops.New(db.Admin())
			p, err := room.Look(t.Context(), "order:42")
			if err != nil {
				t.Fatal(err)
			}
			text, _ := json.MarshalIndent(p, "", " ")
			fmt.Println(string(text))
			text, _ = json.MarshalIndent(p.Tree(), "", " ")
			fmt.Println(string(text))
			cancel()
			<-done
			_ = tx1
		})
	}
}
