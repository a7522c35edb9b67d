package txlock

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// answered is the server's error of a number, wrapped as a program might.
func answered(number uint16) error {
	return fmt.Errorf("the statement: %w", &mysql.MySQLError{Number: number, Message: "as it happens"})
}

// faulty is a plain transaction on a mock, which has answered the two questions of Join and what Lock asks before it sends the lock.
func faulty(t *testing.T, version string) (*Scope, *sql.Tx, sqlmock.Sqlmock) {
	t.Helper()
	equal := sqlmock.QueryMatcherFunc(func(expected, actual string) error { // what MariaDB's first lock begins with
		return sqlmock.QueryMatcherEqual.Match(expected, strings.TrimPrefix(actual, rawsql.For(rawsql.AllowStale)))
	})
	db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(equal))
	check(t, err)
	t.Cleanup(func() {
		mock.ExpectClose()
		check(t, errors.Join(db.Close(), mock.ExpectationsWereMet()))
	})
	mock.ExpectBegin()
	open := &mysql.MySQLError{Number: 1568}
	mock.ExpectExec(rawsql.Probe).WillReturnError(open)
	mock.ExpectQuery(rawsql.Facts).WillReturnRows(sqlmock.NewRows(make([]string, session.Columns)).AddRow(session.Reply(version, "mock/3306/"+t.Name())...))
	tx, err := db.BeginTx(t.Context(), nil)
	check(t, err)
	scope, err := Join(t.Context(), tx, NothingRead())
	check(t, err)
	mock.ExpectExec(rawsql.Probe).WillReturnError(open)
	return scope, tx, mock
}

// TestAfterFault: a transaction on a plain pool which is lost while the server is asked whether an error has left it open takes no lock.
func TestAfterFault(t *testing.T) {
	t.Parallel()
	scope, tx, mock := faulty(t, "9.7.4")
	mock.ExpectExec(gen.LockNamed).WillReturnError(answered(1146))
	_, err := scope.Lock(t.Context(), Named("k"))
	testdb.ErrorIf(t, !errors.Is(err, ErrSchema), "Lock: %v", err)
	mock.ExpectExec(rawsql.Probe).WillReturnError(driver.ErrBadConn)
	_, err = scope.Lock(t.Context(), Named("l"))
	testdb.ErrorIf(t, !errors.Is(err, driver.ErrBadConn), "the next Lock: %v", err)
	mock.ExpectRollback()
	check(t, tx.Rollback())
}

// TestInterruptedUpdate: an UPDATE of a center row which MariaDB has interrupted, and answers with success and no row, is no missing row.
func TestInterruptedUpdate(t *testing.T) {
	t.Parallel()
	key := NewFamily[int]("interrupted", Hashed()).Key(1)
	for name, c := range map[string]struct {
		version string
		there   bool
		want    error
	}{
		"interrupted":          {"10.11.19-MariaDB", true, ErrWaitTimeout},
		"missing":              {"10.11.19-MariaDB", false, ErrSchema},
		"missing, MySQL knows": {"9.7.4", false, ErrSchema},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scope, tx, mock := faulty(t, c.version)
			mock.ExpectExec(gen.LockCenter).WillReturnResult(sqlmock.NewResult(0, 0))
			if c.version != "9.7.4" {
				rows := sqlmock.NewRows([]string{"token"})
				if c.there {
					rows.AddRow(7)
				}
				mock.ExpectQuery(gen.CenterToken).WillReturnRows(rows)
			}
			_, err := scope.Lock(t.Context(), key)
			testdb.ErrorIf(t, !errors.Is(err, c.want), "Lock: %v, want %v", err, c.want)
			mock.ExpectRollback()
			check(t, tx.Rollback())
		})
	}
}

var mySQL = rawsql.MySQL.Replies

// errUnreadable is the error of database/sql for a row that isn't of the statement.
var errUnreadable = errors.New(`sql: Scan error on column index 0, name "token": converting NULL to uint64 is unsupported`)

// TestRepliesAreKnown: each statement and procedure of locks, versions and Once has a reader that knows all its replies.
func TestRepliesAreKnown(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	files, err := filepath.Glob("*.go")
	check(t, err)
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			source.WriteString(read(t, file))
		}
	}
	reader := map[string]string{
		":execlastid": `name = "%[1]s"\s+_, _ = queries\.%[1]s\(|knownID\([^,]+, "%[1]s", `, // of attempt.statement, or in place
		":execrows":   `fault\.Changed\("%s"\)\(queries\.`,
		":one":        `\("%s"`,
	}
	named := regexp.MustCompile(`-- name: (\w+) (:\w+)`)
	for _, queries := range []string{"locks", "centers", "once"} {
		for _, m := range named.FindAllStringSubmatch(read(t, "../gen/"+queries+".sql.go"), -1) {
			name, kind := m[1], m[2]
			want := reader[kind]
			testdb.ErrorIf(t, want != "" && !regexp.MustCompile(fmt.Sprintf(want, name)).MatchString(source.String()), "%s %s has no reader", name, kind)
			for _, e := range []rawsql.Engine{rawsql.MariaDB, rawsql.MySQL} {
				_, known := e.Replies.IDs[name]
				testdb.ErrorIf(t, known != (kind == ":execlastid"), "%s %s among the insert ids: %t", name, kind, known)
			}
		}
	}
	known := slices.Concat(slices.Collect(maps.Keys(mySQL.Outcomes)), slices.Collect(maps.Keys(mySQL.Numbers)), mySQL.Lists,
		[]string{"lockstep_begin_1", "lockstep_raise_1", "lockstep_program_2", "lockstep_lock_read_2"}) // which others call; those of guard
	var procedures []string
	for _, m := range regexp.MustCompile(`CREATE PROCEDURE (\w+)`).FindAllStringSubmatch(read(t, "../schema/mysql/0005_procedures.sql"), -1) {
		procedures = append(procedures, m[1])
	}
	slices.Sort(known)
	slices.Sort(procedures)
	testdb.ErrorIf(t, !slices.Equal(known, procedures), "procedures %q, and known are %q", procedures, known)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	check(t, err)
	return string(text)
}

// TestInsertIDs feeds the readers of statements without rows what they have no meaning for.
func TestInsertIDs(t *testing.T) {
	t.Parallel()
	for _, e := range []rawsql.Engine{rawsql.MariaDB, rawsql.MySQL, rawsql.TiDB} {
		for statement, others := range e.Replies.IDs {
			for _, id := range []int64{math.MinInt64, -1, 0, 1, 2, 1 << 50, math.MaxInt64} {
				got, err := knownID(e.Replies, statement, id, nil)
				if known := id > rowInserted || slices.Contains(others, id); known != (err == nil) || !known && !errors.Is(err, fault.ErrReply) || known && got != id {
					t.Errorf("%s: the insert id %d is read as %d, %v", statement, id, got, err)
				}
			}
			_, err := knownID(e.Replies, statement, 7, errUnreadable)
			testdb.ErrorIf(t, !errors.Is(err, fault.ErrReply), "%s: %v", statement, err)
		}
	}
	if _, err := knownID(rawsql.TiDB.Replies, "CompareAndBumpNamed", 7, nil); !errors.Is(err, fault.ErrReply) {
		t.Errorf("the reply to a statement that isn't sent to the engine is read: %v", err)
	}
	for token, known := range map[uint64]bool{0: true, 1 << 50: true, math.MaxInt64: true, math.MaxInt64 + 1: false} {
		got, err := tokenOf("NamedToken")(token, nil)
		testdb.ErrorIf(t, errors.Is(err, fault.ErrReply) == known || known && got != token, "the token %d is read as %d, %v", token, got, err)
	}
	if _, err := tokenOf("NamedToken")(0, sql.ErrNoRows); !errors.Is(err, sql.ErrNoRows) || errors.Is(err, fault.ErrReply) {
		t.Errorf("no row is read as %v", err)
	}
	_, err := tokenOf("NamedToken")(0, errUnreadable)
	testdb.ErrorIf(t, !errors.Is(err, fault.ErrReply) || fault.Retryable(fmt.Errorf("%w: %w", ErrTxDoomed, err)), "a row that can't be read is read as %v", err)
}

// rowOf is a row that a procedure may answer with.
func rowOf(word string, o rawsql.Outcome) []driver.Value {
	row := []driver.Value{nil, []byte(word), nil}
	for i, w := range map[int]rawsql.Column{0: o.Token, 2: o.Old} {
		switch w {
		case rawsql.Zero:
			row[i] = []byte("0")
		case rawsql.Present, rawsql.Granted:
			row[i] = []byte("1795646411035062")
		}
	}
	return row
}

// broken returns replies that are like the given one, which has one row, but are none.
func broken(reply guard.Reply) map[string]guard.Reply {
	row, all := reply.Rows[0], map[string]guard.Reply{
		"OK":            {},
		"a row more":    {Columns: reply.Columns, Rows: [][]driver.Value{reply.Rows[0], reply.Rows[0]}},
		"a column more": {Columns: reply.Columns + 1, Rows: [][]driver.Value{append(slices.Clone(reply.Rows[0]), nil)}},
		"a column less": {Columns: reply.Columns - 1, Rows: [][]driver.Value{reply.Rows[0][1:]}},
	}
	for i, v := range row {
		for name, other := range map[string]driver.Value{
			"another word": []byte("perhaps"), "no text": []byte{}, "utf16": []byte("\x00" + strings.Join(strings.Split(shownValue(v), ""), "\x00")),
			"out of range": uint64(math.MaxInt64 + 1), "larger than all": []byte("18446744073709551616"), "negative": int64(-1), "a float": 1.5,
		} {
			changed := slices.Clone(row)
			changed[i] = other
			all[fmt.Sprintf("%s in column %d", name, i)] = guard.Reply{Columns: reply.Columns, Rows: [][]driver.Value{changed}}
		}
	}
	return all
}

func shownValue(v driver.Value) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return "7"
}

// TestOutcomes feeds the readers of procedures each known reply, and what is none.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for procedure, words := range mySQL.Outcomes {
		for word, o := range words {
			if word == "" { // no row, below
				continue
			}
			reply := guard.Reply{Columns: 3, Rows: [][]driver.Value{rowOf(word, o)}}
			r, err := readOutcome(mySQL, procedure, false, reply)
			testdb.ErrorIf(t, err != nil || r.what.V != word, "%s: %s is read as %+v, %v", procedure, shown(reply), r, err)
			others := broken(reply)
			for i, w := range map[int]rawsql.Column{0: o.Token, 2: o.Old} {
				for name, bad := range map[string]struct {
					of []rawsql.Column
					v  driver.Value
				}{
					"NULL":    {[]rawsql.Column{rawsql.Zero, rawsql.Present, rawsql.Granted}, nil},
					"token 0": {[]rawsql.Column{rawsql.Null, rawsql.Granted}, int64(0)},
					"token 1": {[]rawsql.Column{rawsql.Null, rawsql.Zero}, int64(1)},
				} {
					if slices.Contains(bad.of, w) {
						changed := slices.Clone(reply.Rows[0])
						changed[i] = bad.v
						others[fmt.Sprintf("%s in column %d", name, i)] = guard.Reply{Columns: 3, Rows: [][]driver.Value{changed}}
					}
				}
			}
			null := slices.Clone(reply.Rows[0])
			null[1] = nil
			others["NULL for a word"] = guard.Reply{Columns: 3, Rows: [][]driver.Value{null}}
			if _, none := words[""]; !none {
				others["no row"] = guard.Reply{Columns: 3}
			}
			for name, other := range others {
				r, err := readOutcome(mySQL, procedure, false, other)
				testdb.ErrorIf(t, !errors.Is(err, fault.ErrReply) || r != (outcome{}), "%s, %s: %s, %s, is read as %+v, %v", procedure, word, name, shown(other), r, err)
			}
		}
	}
	for procedure, most := range mySQL.Numbers {
		reply := guard.Reply{Columns: 1, Rows: [][]driver.Value{{[]byte("1")}}}
		if n, err := readNumber(mySQL, procedure, reply); n != 1 || err != nil {
			t.Errorf("%s: 1 is read as %d, %v", procedure, n, err)
		}
		others := broken(reply)
		others["NULL"] = guard.Reply{Columns: 1, Rows: [][]driver.Value{{nil}}}
		others["no row"] = guard.Reply{Columns: 1}
		others["too much"] = guard.Reply{Columns: 1, Rows: [][]driver.Value{{most + 1}}}
		for name, other := range others {
			n, err := readNumber(mySQL, procedure, other)
			testdb.ErrorIf(t, !errors.Is(err, fault.ErrReply), "%s: %s is read as %d, %v", procedure, name, n, err)
		}
	}
	if _, err := readOutcome(mySQL, "lockstep_share_1", true, guard.Reply{Columns: 3}); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("no row to share is read as %v", err)
	}
	r, err := readOutcome(mySQL, "lockstep_try_1", true, guard.Reply{Columns: 3, Rows: [][]driver.Value{{int64(0), "granted", nil}}})
	testdb.ErrorIf(t, err != nil, "a row that was never granted, shared, is read as %+v, %v", r, err)
}

// TestTokensOfMany feeds the reader of the tokens of several keys what is no reply.
func TestTokensOfMany(t *testing.T) {
	t.Parallel()
	m := &attempt{state: new(state), keys: []Key{Named("a"), Named("b")}}
	row := func(name string, token, old any) manyRow {
		r := manyRow{record: record{name: name}}
		check(t, errors.Join(r.token.Scan(token), r.old.Scan(old)))
		return r
	}
	a, b := row("a", 7, nil), row("b", 8, nil)
	for name, c := range map[string]struct {
		wanted rawsql.Column
		rows   []manyRow
		err    error
	}{
		"both":                 {rawsql.Granted, []manyRow{a, b}, nil},
		"as in the snapshot":   {rawsql.Present, []manyRow{row("a", 7, 7), row("b", 0, 0)}, nil},
		"not in the snapshot":  {rawsql.Granted, []manyRow{row("b", 7, 6)}, ErrStaleSnapshot},
		"none":                 {rawsql.Granted, nil, fault.ErrReply},
		"one":                  {rawsql.Granted, []manyRow{a}, fault.ErrReply},
		"a row more":           {rawsql.Granted, []manyRow{a, b, row("c", 9, nil)}, fault.ErrReply},
		"one twice":            {rawsql.Granted, []manyRow{a, a}, fault.ErrReply},
		"NULL":                 {rawsql.Granted, []manyRow{a, row("b", nil, nil)}, fault.ErrReply},
		"NULL that may be any": {rawsql.Present, []manyRow{a, row("b", nil, nil)}, fault.ErrReply},
		"token 0":              {rawsql.Granted, []manyRow{a, row("b", 0, nil)}, fault.ErrReply},
		"out of range":         {rawsql.Granted, []manyRow{a, row("b", uint64(math.MaxUint64), nil)}, fault.ErrReply},
		"another key's":        {rawsql.Granted, []manyRow{a, row("a\x00", 8, nil)}, fault.ErrReply},
		"a center's":           {rawsql.Granted, []manyRow{a, {record: record{slot: 1, hashed: true}, token: b.token}}, fault.ErrReply},
	} {
		found, err := m.tokensOf("LockMany", c.wanted, c.rows)
		testdb.ErrorIf(t, !errors.Is(err, c.err) || c.err == nil && (err != nil || len(found) != 2), "%s: %v, %v, want %v", name, found, err, c.err)
	}
	for n, want := range map[int64]bool{-1: false, 0: false, 1: false, 2: true, 3: true, 4: true, 6: true, 7: false} {
		all, err := m.changed("LockMany", n, nil)
		testdb.ErrorIf(t, errors.Is(err, fault.ErrReply) == want || want && all != (n >= 4), "%d changed rows are read as %t, %v", n, all, err)
	}
}

// OnEngines runs a test for every engine.
func OnEngines(t *testing.T, test func(t *testing.T, engine testdb.Engine)) {
	t.Helper()
	t.Parallel()
	testdb.OnEngines(t, test)
}

// Remembered returns how many open transactions of this program are known to hold a key.
func Remembered(key Key) (n int) {
	inProgram.mu.Lock()
	defer inProgram.mu.Unlock()
	of := func(s spot) bool { return s.record == spotOf(new(state), key, s.once).record }
	for s := range inProgram.by {
		if of(s) {
			n++
		}
	}
	for s := range inProgram.shared {
		if of(s) {
			n++
		}
	}
	return n
}

// TestSlowWaitCostsNothing: what isn't asked for allocates nothing: of a scope that has all but SlowWait.
func TestSlowWaitCostsNothing(t *testing.T) {
	s, key := &state{pooled: pooled{watch: SlogObserver(nil)}}, Named("order:42")
	n := testing.AllocsPerRun(100, func() { s.slowly(t.Context(), true, key).End() })
	testdb.ErrorIf(t, n != 0, "%v allocations", n)
}
