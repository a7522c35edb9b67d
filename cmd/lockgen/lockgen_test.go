//go:build !race

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/cmd/lockgen/testdata/hidden"
	"github.com/dca00107/lockstep/cmd/lockgen/testdata/shopdb/shopdb"
	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// golden are packages of testdata: four made by sqlc with other options from the same
// queries, sqlc's own examples, and one with a column of every type.
var golden = []string{
	"shopdb/shopdb", "hidden/internal/hidden", "tagged/tagged", "examples/ondeck/ondeck", "types/types", "prepared/prepared",
	"examples/authors/authors", "examples/booktest/booktest",
}

// TestCompiles proves that the golden files compile, and that go vet finds nothing.
func TestCompiles(t *testing.T) {
	t.Parallel()
	args := []string{"vet", "-tags=tagged"}
	for _, name := range golden {
		args = append(args, "./"+filepath.Join("testdata", name))
	}
	out, err := exec.Command("go", args...).CombinedOutput()
	testdb.ErrorIf(t, err != nil, "go vet: %v\n%s", err, out)
}

// TestStale proves that the output doesn't compile beside other SQL than that it was made of.
func TestStale(t *testing.T) {
	t.Parallel()
	file := testdb.Got(filepath.Abs("testdata/shopdb/shopdb/queries.sql.go"))(t)
	text := testdb.Got(os.ReadFile(file))(t)
	dir := t.TempDir()
	changed := strings.Replace(string(text), "UPDATE accounts SET balance = ?", "UPDATE accounts SET balance = balance + ?", 1)
	must(t, os.WriteFile(filepath.Join(dir, "changed.go"), []byte(changed), 0o644))
	overlay := testdb.Got(json.Marshal(map[string]any{"Replace": map[string]string{file: filepath.Join(dir, "changed.go")}}))(t)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
	out, err := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "./testdata/shopdb/shopdb").CombinedOutput()
	testdb.ErrorIf(t, err == nil || !strings.Contains(string(out), "duplicate key false"), "go build: %v\n%s", err, out)
}

// shop is the package shopdb, loaded once.
var shop = sync.OnceValues(func() (*goPackage, error) {
	dir, err := filepath.Abs("testdata/shopdb/shopdb")
	if err != nil {
		return nil, err
	}
	return load(dir, nil)
})

// planned returns what lockgen says of the queries of shopdb where old is replaced by new,
// in the SQL that sqlc has generated, too.
func planned(t *testing.T, old, changed string) string {
	t.Helper()
	text := testdb.Got(os.ReadFile("testdata/queries.sql"))(t)
	testdb.FatalIf(t, !strings.Contains(string(text), old), "%q is nowhere", old)
	file := filepath.Join(t.TempDir(), "queries.sql")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), old, changed)), 0o644))
	sources, found, err := readQueries([]string{file})
	must(t, err)
	pkg := testdb.Got(shop())(t)
	own := *pkg
	own.methods = map[string]*method{}
	for name, m := range pkg.methods {
		m := *m
		m.sql = strings.ReplaceAll(m.sql, withoutComments(old), withoutComments(changed))
		own.methods[name] = &m
	}
	p := &plan{pkg: &own, problems: found}
	schema := testdb.Got(readSchema([]string{"testdata/schema.sql"}))(t)
	p.compare(schema)
	p.make(sources)
	_, _ = p.leave(nil) // nothing is left for later
	return p.sorted().Error()
}

var commentLine = regexp.MustCompile(`(?m)^(--.*|#.*|/\*.*\*/)\n|;$`)

func withoutComments(sql string) string { return commentLine.ReplaceAllString(sql, "") }

const (
	setBalance = "# lock: Accounts(id)\nUPDATE accounts SET balance = ? WHERE id = ?;"
	inSubquery = "owner = (SELECT what FROM audit WHERE id = ?)"
)

// TestRefused proves that what is missing or wrong is refused where it stands.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, want string }{
		"a write without its lock":    {setBalance, "UPDATE accounts SET balance = ? WHERE id = ?;", "queries.sql:18: SetBalance writes accounts, which is locked by Accounts. Write below its name: -- lock: Accounts(id)"},
		"a write with a shared lock":  {"-- lock: Carts(id)\n", "-- rlock: Carts(id)\n", "TouchCart writes carts"},
		"an insert with its key":      {"-- lock: Accounts(id)\nINSERT", "INSERT", "AddAccount writes accounts"},
		"an upsert":                   {"-- lock: Products(sku)\nINSERT", "INSERT", "UpsertProduct writes products"},
		"an upsert without its key":   {"VALUES (?, 'open', ?);", "VALUES (?, 'open', ?) ON DUPLICATE KEY UPDATE amount = 0;", "AddOrder writes orders, which is locked by Orders"},
		"one of two tables":           {"-- lock: Orders(order_id), Accounts(account_id)", "-- lock: Orders(order_id)", "PayOrder writes accounts, which is locked by Accounts. Write below its name: -- lock: Accounts(account_id)"},
		"a part of a key":             {"-- lock: Lines(order_id, line)\nREPLACE", "-- lock: Lines(order_id)\nREPLACE", "a key of Lines has 2 parts"},
		"a read without its lock":     {"-- lock: none, because it is shown to people only\nSELECT", "SELECT", "queries.sql:10: Glance reads accounts, which this package also writes. Write below its name: -- lock: Accounts(id)  or: -- rlock: Accounts(id)"},
		"a read in a subquery":        {"-- lock: none, because it is shown to people only\nWITH", "WITH", "CartsOf reads carts"},
		"a read of INSERT ... SELECT": {"-- lock: none, because copies get new keys and the originals stay as they are\n", "", "CopyOrders reads orders"},
		"another column":              {"-- lock: Carts(id)\n", "-- lock: Carts(account_id)\n", "Carts(account_id): account_id has the type int64, which is no key"},
		"another column of that type": {setBalance, strings.Replace(setBalance, "(id)", "(balance)", 1), "queries.sql:19: Accounts(balance): balance must be the key of the row, but the query doesn't compare it with accounts.id"},
		"the key of a subquery":       {setBalance, strings.Replace(setBalance, "id = ?", inSubquery, 1), "Accounts(id): id must be the key of the row, but the query doesn't compare it with accounts.id"},
		"no such parameter":           {"Accounts(from_id), Accounts(to_id)", "Accounts(from_id), Accounts(onto_id)", "onto_id is no parameter of Transfer, which has: amount, from_id, to_id"},
		"no such family":              {"Accounts(from_id), Accounts(to_id)", "Acounts(from_id)", "there is no txlock.Family Acounts"},
		"none without a reason":       {"-- lock: none, because it is shown to people only\nSELECT", "-- lock: none\nSELECT", "queries.sql:11: write the reason: -- lock: none, because ..."},
		"indented":                    {setBalance, "  " + setBalance, "queries.sql:19: the annotation \"lock: Accounts(id)\" must have a line of its own that begins with --"},
		"behind a semicolon":          {setBalance, "UPDATE accounts SET balance = ? WHERE id = ?; -- lock: Accounts(id)", "queries.sql:19: the annotation \"lock: Accounts(id)\" must stand directly below the -- name: line"},
		"below a semicolon":           {setBalance, "UPDATE accounts SET balance = ? WHERE id = ?;\n-- lock: Accounts(id)", "queries.sql:20: the annotation"},
		"inside the statement":        {setBalance, "UPDATE accounts\n-- lock: Accounts(id)\nSET balance = ? WHERE id = ?;", "queries.sql:20: the annotation"},
		"at the end of a line":        {setBalance, "UPDATE accounts SET balance = ? -- lock: Accounts(id)\n WHERE id = ?;", "queries.sql:19: the annotation"},
		"of several lines":            {setBalance, strings.Replace(setBalance, "# lock: Accounts(id)", "/* lock:\n Accounts(id) */", 1), "queries.sql:19: the annotation \"lock:\" must have a line of its own"},
		"continued":                   {"Accounts(from_id), Accounts(to_id)", "Accounts(from_id),\n-- Accounts(to_id)", "the annotation ends too early"},
		"of several lines, no comma":  {"Accounts(from_id), Accounts(to_id)", "Accounts(from_id)\n-- , Accounts(to_id)", "can't read the annotation \", Accounts(to_id)\""},
		"misspelt":                    {setBalance, strings.Replace(setBalance, "lock:", "Locks:", 1), "can't read the annotation \"Locks: Accounts(id)\""},
		"without a colon":             {setBalance, strings.Replace(setBalance, "lock:", "lock", 1), "can't read the annotation"},
		"keys and none":               {setBalance, "-- lock: none, because it is a test\n" + setBalance, "SetBalance has keys and none at once"},
		"what is unknown":             {"# lock: Accounts(id)\nUPDATE accounts SET balance = ? WHERE id = ?", "CALL set_balance(?, ?)", "lockgen can't analyze SetBalance (it is neither SELECT"},
		"truncated":                   {"# lock: Accounts(id)\nUPDATE accounts SET balance = ? WHERE id = ?", "TRUNCATE accounts", "lockgen can't analyze SetBalance (it is neither SELECT"},
		"above the name":              {"-- name: SetBalance :exec\n# lock: Accounts(id)\n", "-- lock: Accounts(id)\n-- name: SetBalance :exec\n", "must stand directly below the -- name: line"},
		"two on one line":             {setBalance, "-- lock: Accounts(id) -- lock: Accounts(id)\nUPDATE accounts SET balance = ? WHERE id = ?;", "can't read"},
		"what may be NULL":            {"-- lock: Orders(id)\nUPDATE", "-- lock: Orders(parent_id)\nUPDATE", "parent_id has the type database/sql.NullInt64, which is no key of a family of uint64"},
		"another kind":                {"-- name: SetBalance :exec\n", "-- name: SetBalance :execrows\n", "sqlc has not generated SetBalance as :execrows: run sqlc generate"},
		"another name":                {"-- name: SetBalance :exec\n", "-- name: PutBalance :exec\n", "no .sql file has the query SetBalance: run sqlc generate"},
		"a name of lockgen's":         {"-- name: SetBalance :exec\n", "-- name: CommitWith :exec\n", "lockgen needs the name CommitWith itself: rename the query"},
		"a name twice":                {"-- name: SetBalance :exec\n", "-- name: Glance :exec\n", "Glance has the name of a query of queries.sql:10"},
		"a macro left in ON":          {"ON a.id = o.account_id SET", "ON a.id = sqlc.arg(other_id) SET", "sqlc has left a macro in the SQL of PayOrder"},
		"an argument lost by sqlc":    {setBalance, "# lock: Accounts(id)\nUPDATE accounts SET balance = ? WHERE id = ? AND balance < ?;", "sqlc passes 2 arguments for the 3 parameters of SetBalance, which the server will refuse. This is an error of sqlc"},
		"a macro left by sqlc":        {"WHERE order_id = ? AND line", "WHERE order_id = -sqlc.arg(id) AND line", "sqlc has left a macro in the SQL of Line"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Says(t, "lockgen", planned(t, c.old, c.new), c.want)
		})
	}
}

// TestForms proves that names and annotations may stand in any form of comment.
func TestForms(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"-- %s\n", "# %s\n", "/* %s */\n"} {
		of := func(text string) string { return strings.Replace(form, "%s", text, 1) }
		said := planned(t, "-- name: SetBalance :exec\n# lock: Accounts(id)\n", of("name: SetBalance :exec")+of("lock: Accounts(id)"))
		testdb.Equal(t, fmt.Sprintf("what lockgen says to %q", form), said, "")
	}
}

// workspace is a copy of what is generated from the shop of testdata, in the module.
type workspace struct {
	*testing.T
	root, dir, front string // front is the first directory of the package's path
}

func newWorkspace(t *testing.T, pkg string) *workspace {
	t.Helper()
	root := testdb.Got(os.MkdirTemp("testdata", ".copy-"))(t)
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	name, _, _ := strings.Cut(pkg, "/")
	w := &workspace{T: t, root: root, dir: filepath.Join(root, filepath.FromSlash(pkg)), front: filepath.Join(root, name)}
	must(t, os.CopyFS(w.front, os.DirFS("testdata/"+name)))
	for _, file := range []string{"queries.sql", "schema.sql"} {
		w.write(filepath.Join(root, file), w.read(filepath.Join("testdata", file)))
	}
	return w
}

// lockgen demands how the command ends, and what it says, each a part of it.
func (w *workspace) lockgen(want int, says []string, args ...string) string {
	w.Helper()
	var stderr strings.Builder
	if code := run(append(args, w.dir), &stderr); code != want {
		w.Errorf("lockgen %q has ended with %d, want %d: %s", args, code, want, stderr.String())
	}
	testdb.Says(w, fmt.Sprintf("lockgen %q", args), stderr.String(), says...)
	if want == 0 && len(says) == 0 && stderr.Len() > 0 {
		w.Errorf("lockgen %q says: %s", args, stderr.String())
	}
	return stderr.String()
}

func (w *workspace) write(path, text string) {
	w.Helper()
	must(w.T, os.WriteFile(path, []byte(text), 0o644))
}

func (w *workspace) read(path string) string {
	w.Helper()
	return string(testdb.Got(os.ReadFile(path))(w.T))
}

// replace replaces a text in a file.
func (w *workspace) replace(path, old, changed string) {
	w.Helper()
	w.write(path, strings.ReplaceAll(w.read(path), old, changed))
}

func (w *workspace) exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// TestFails proves that the command fails, that no output of before stays, and that -check removes nothing.
func TestFails(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, "shopdb/shopdb")
	w.lockgen(0, nil, "-check")
	w.replace(filepath.Join(w.root, "queries.sql"), "-- lock: Carts(id)\n", "-- a comment\n")
	w.lockgen(1, []string{"TouchCart writes carts"}, "-check")
	testdb.ErrorIf(t, !w.exists(filepath.Join(w.dir, output)), "-check has removed the output")
	locks := filepath.Join(w.dir, "locks.go")
	w.replace(locks, "//lockstep:table carts(id)", "// lockstep:table carts(id)")
	w.replace(locks, "//lockstep:table products(sku)", "//lockstep:table products")
	w.replace(locks, "//lockstep:table order_lines(order_id, line)", "//lockstep:table order_lines(order_id, line, sku)")
	w.replace(locks, "// LineID is the key", "//lockstep:table orders(id)\n// LineID is the key")
	w.lockgen(1, []string{
		"locks.go:33: can't read \"// lockstep:table carts(id)\"", "can't read \"//lockstep:table products\"",
		"3 columns can't make a key of", "must stand directly above a variable of type txlock.Family",
	})
	testdb.ErrorIf(t, w.exists(filepath.Join(w.dir, output)), "the output of before is still there")
	w.lockgen(1, nil, "-check")
}

// TestOnly proves that -only asks for the locks of what it names and of nothing else, lists the
// rest, and leaves no query in Locked of which the locks aren't known.
func TestOnly(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, "shopdb/shopdb")
	for _, lock := range []string{"-- lock: Carts(id)\n", "-- lock: Lines(order_id, line)\n"} {
		w.replace(filepath.Join(w.root, "queries.sql"), lock, "-- later\n")
	}
	written := filepath.Join(w.dir, output)

	const touches, replaces = "TouchCart writes carts, which is locked by Carts. Write below its name: -- lock: Carts(id)", "ReplaceLine writes order_lines"
	later := w.lockgen(0, []string{"-only leaves for later:", touches, replaces}, "-only", "accounts, Reparent")
	testdb.ErrorIf(t, strings.Contains(later, "Accounts"), "what was asked for is left for later:\n%s", later)
	w.lockgen(0, []string{touches}, "-only", "accounts, Reparent", "-check")
	for query, want := range map[string]bool{"SetBalance": true, "Reparent": true, "UpsertProduct": true, "TouchCart": false, "ReplaceLine": false} {
		testdb.Equal(t, "Locked has "+query, strings.Contains(w.read(written), "func (l *Locked) "+query+"("), want)
	}
	out, err := exec.Command("go", "vet", "./"+w.dir).CombinedOutput()
	testdb.ErrorIf(t, err != nil, "go vet: %v\n%s", err, out)
	w.lockgen(1, []string{touches, replaces}, "-only", "Carts, ReplaceLine")
	w.lockgen(1, []string{"-only acounts: no query has that name, and no family is marked by //lockstep:table acounts(...)"}, "-only", "acounts")
	w.lockgen(2, []string{`-only "accounts,," has an empty name`}, "-only", "accounts,,")
	w.lockgen(2, []string{"-only is not for -front"}, "-only", "accounts", "-front", w.root)
	testdb.ErrorIf(t, w.exists(written), "the output of before is still there")
}

// TestOnlyHas proves that a query which can't be parsed is asked for where it names the table.
func TestOnlyHas(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"CALL pay('x')": false, "CALL pay(accounts)": true, "TRUNCATE `Accounts`": true, "TRUNCATE my_accounts": false, "TRUNCATE shop.accounts": true,
	} {
		q := &query{source: &source{name: "Pay"}, method: &method{sql: sql}}
		testdb.Equal(t, sql, (only{"accounts", "Glance"}).has(q), want)
		testdb.ErrorIf(t, !(only{"Pay"}).has(q) || !(only(nil)).has(q), "%s: a query that is named, and each without -only, must say its locks", sql)
	}
}

// traced is a transaction of a program's own, as tracers make them.
type traced struct {
	*sql.Tx
	sent atomic.Int64
}

func (t *traced) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.sent.Add(1)
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *traced) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.sent.Add(1)
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// TestOwnTransactions locks by a transaction of a type that sqlc doesn't know, with Commit and
// Rollback, and where its methods take a DBTX also without. A pool is none.
func TestOwnTransactions(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		db, q := newShop(t, engine)
		type locker interface{ Locks() *txlock.Scope }
		locks := func(t *testing.T, with func(tx *traced) (locker, error)) {
			t.Helper()
			tx := testdb.Got(db.BeginTx(t.Context(), nil))(t)
			defer func() { must(t, tx.Rollback()) }()
			own := &traced{Tx: tx}
			locked := testdb.Got(with(own))(t)
			_, held := locked.Locks().Held(shopdb.Accounts.Key(1))
			testdb.ErrorIf(t, !held, "the account is not locked")
			if own.sent.Load() < 2 { // the question whether a transaction is open, and the query
				t.Errorf("%d statements went through the transaction", own.sent.Load())
			}
		}
		locks(t, func(tx *traced) (locker, error) {
			q := testdb.Got(q.WithLocks(t.Context(), tx))(t)
			_, err := q.GetAccount(t.Context(), 1)
			return q, err
		})
		locks(t, func(tx *traced) (locker, error) {
			q := testdb.Got(hidden.WithLocks(t.Context(), struct{ gen.DBTX }{tx}))(t)
			_, err := q.GetAccount(t.Context(), 1)
			return q, err
		})
		conn := testdb.Got(db.Conn(t.Context()))(t)
		defer func() { must(t, conn.Close()) }()
		for _, none := range []gen.DBTX{db, conn, struct{ gen.DBTX }{db}, nil, (*sql.Tx)(nil)} {
			_, err := hidden.WithLocks(t.Context(), none)
			wants(t, fmt.Sprintf("%T", none), err, txlock.ErrNoTransaction)
		}
	})
}

// TestTwoTrips proves that a query which reads takes its lock with it, and the last one commits:
// a transaction that reads an account and writes it has two round trips.
func TestTwoTrips(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		trips, count := testdb.CountTrips(t)
		db := newDatabase(t, engine, count, func(cfg *mysql.Config) { cfg.InterpolateParams = true })
		db.SetMaxOpenConns(1)
		q := shopdb.New(db)
		add := func(q *shopdb.Locked) error {
			return q.CommitWith(1).AddAccount(t.Context(), shopdb.AddAccountParams{ID: 1, Owner: "somebody", Balance: money})
		}
		must(t, q.Run(t.Context(), db, nil, add))
		for range 3 {
			before := trips.Count()
			must(t, q.Run(t.Context(), db, nil, func(q *shopdb.Locked) error {
				account, err := q.GetAccount(t.Context(), 1)
				if err != nil {
					return err
				}
				_, held := q.Locks().Held(shopdb.Accounts.Key(1))
				testdb.ErrorIf(t, !held, "it is not locked")
				return q.CommitWith(1).SetBalance(t.Context(), shopdb.SetBalanceParams{ID: 1, Balance: account.Balance - 1})
			}))
			testdb.Equal(t, "round trips", trips.Count()-before, 2)
		}
		account := testdb.Got(q.GetAccount(t.Context(), 1))(t)
		testdb.Equal(t, "the balance", account.Balance, money-3)
		err := q.Run(t.Context(), db, nil, func(q *shopdb.Locked) error {
			_, err := q.CommitWith(1).GetAccount(t.Context(), 1)
			return err
		})
		testdb.Fails(t, "a read that is to commit", err, "single INSERT, UPDATE, DELETE or REPLACE")
	})
}
