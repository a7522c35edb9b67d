package locktest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestPrepared prepares a statement of the program, and one of lockstep's own as GORM does with
// PrepareStmt.
func TestPrepared(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	ctx := t.Context()
	tx, err := k.DB().BeginTx(ctx, nil)
	must(t, err)
	own, err := tx.PrepareContext(ctx, gen.LockNamed)
	must(t, err)
	_, err = own.ExecContext(ctx, []byte("order:1"), []byte("test"), 1)
	must(t, err)
	mock.ExpectBegin()
	mock.ExpectPrepare("UPDATE orders").ExpectExec().WithArgs(7).WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectCommit()
	program, err := tx.PrepareContext(ctx, "UPDATE orders SET n = ?")
	must(t, err)
	_, err = program.ExecContext(ctx, 7)
	must(t, err)
	must(t, tx.Commit())
	k.Before(orders.Key(1), "UPDATE orders")
}

// TestTransactionAsText begins a transaction by a statement, and undoes a lock by a savepoint.
func TestTransactionAsText(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	ctx := t.Context()
	conn, err := k.DB().Conn(ctx)
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	send := func(query string) {
		t.Helper()
		mock.ExpectExec(query).WillReturnResult(sqlmock.NewResult(0, 0))
		_, err := conn.ExecContext(ctx, query)
		must(t, err)
	}
	send("BEGIN")
	scope, err := locksqlc.JoinConn(ctx, conn)
	must(t, err)
	send("SAVEPOINT before")
	first, err := scope.Lock(ctx, orders.Key(1))
	must(t, err)
	send("ROLLBACK TO SAVEPOINT before")
	if _, held := scope.Held(orders.Key(1)); held {
		t.Error("held after the savepoint")
	}
	again, err := scope.Lock(ctx, orders.Key(1))
	must(t, err)
	if again.Token() <= first.Token() {
		t.Errorf("token %d after %d", again.Token(), first.Token())
	}
	send("COMMIT")
	version, err := txlock.ReadVersion(ctx, k.DB(), orders.Key(1))
	must(t, err)
	if version != again.Token() {
		t.Errorf("version %d, want %d", version, again.Token())
	}
}

// TestAllStatementsAreKnown proves that the Kit executes each statement that sqlc has compiled,
// besides those of leases, and those of engines that it doesn't play.
func TestAllStatementsAreKnown(t *testing.T) {
	t.Parallel()
	others := []string{"CenterForUpdate", "NamedForUpdate", "TouchNamed"}
	files, err := filepath.Glob("../../gen/*.sql.go")
	must(t, err)
	known, constant := 0, regexp.MustCompile("(?s)const (\\w+) = `(-- name: [^`]+)`")
	for _, file := range files {
		if filepath.Base(file) == "leases.sql.go" || filepath.Base(file) == "shared.sql.go" {
			continue
		}
		source, err := os.ReadFile(file)
		must(t, err)
		for _, s := range constant.FindAllStringSubmatch(string(source), -1) {
			switch knows := locktest.Knows(s[2]) || locktest.Knows(rawsql.Big(s[2])); {
			case knows:
				known++
			case !slices.Contains(others, s[1]):
				t.Errorf("the Kit doesn't execute %s: it has no handler in statements.go", s[1])
			}
		}
	}
	if known < 30 {
		t.Errorf("%d statements were found", known)
	}
}
