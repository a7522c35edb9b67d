package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// stage is where a situation is made: the program's pool, and the command, which an
// operator calls.
type stage struct {
	*testing.T
	db   *testdb.DB
	pool *sql.DB
	ctx  context.Context // labels the locks

	dsn   string // of the operator
	stdin string
	names []string // pairs, for a strings.Replacer
	calls []string // commands that were run, with what they printed

	sessions int
	last     int64 // the session of the last transaction
}

// onServers runs a test on a stage of each server, in a database without the rows of hashed keys,
// unless it is made by another function.
func onServers(t *testing.T, test func(t *testing.T, s *stage), made ...func(testing.TB, testdb.Engine) *testdb.DB) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		if len(made) > 0 {
			test(t, newStage(t, made[0](t, engine)))
		} else {
			test(t, newStage(t, testdb.Shared(t, engine).OpenLeases(t)))
		}
	})
}

// newStage clears the database of what was done in it before.
func newStage(t *testing.T, db *testdb.DB) *stage {
	t.Helper()
	for _, table := range []string{"locks", "centers", "leases", "once", "jobs"} {
		db.Exec(t, "DELETE FROM lockstep_"+table)
	}
	return stageOn(t, db)
}

// stageOn makes a stage of a database as it is.
func stageOn(t *testing.T, db *testdb.DB) *stage {
	t.Helper()
	s := &stage{T: t, db: db, dsn: db.AdminDSN()}
	s.pool = db.Connect(t, program)
	s.ctx = txlock.WithLabel(t.Context(), label)
	s.names = []string{db.Config().User, "app", db.AdminConfig().User, "operator", db.Name(), "shop", fmt.Sprintf("(pid %d)", os.Getpid()), "(pid 4711)"}
	return s
}

func program(c *mysql.Config) { c.ConnectionAttributes = "program_name:shop" }

// begin begins a transaction, whose session has the next number on the page, and which waits as
// long as the test looks at it.
func (s *stage) begin() (*sql.Tx, *txlock.Scope) {
	s.Helper()
	tx, err := s.pool.BeginTx(s.ctx, nil)
	s.must(err)
	s.Cleanup(func() { _ = tx.Rollback() })
	s.must(second(tx.ExecContext(s.ctx, "SET innodb_lock_wait_timeout = 3600")))
	s.last = testdb.ConnID(s, tx)
	s.number(s.last)
	scope, err := txlock.Join(s.ctx, tx)
	s.must(err)
	return tx, scope
}

// number gives a session the next number on the page.
func (s *stage) number(id int64) {
	s.names = append(s.names, "session:"+strconv.FormatInt(id, 10), strconv.Itoa(51+s.sessions))
	s.sessions++
}

func (s *stage) must(err error) {
	s.Helper()
	check(s.T, err)
}

// lock locks keys, which exist before: as in a program that has run for a while.
func (s *stage) lock(scope *txlock.Scope, keys ...txlock.Key) {
	s.Helper()
	s.must(txlock.Ensure(s.ctx, s.pool, keys...))
	for _, key := range keys {
		s.must(second(scope.Lock(s.ctx, key)))
	}
}

// label names the owners.
const label = "web-1/4711"

// waits lets a transaction lock a key that it has to wait for, until the end of the test.
func (s *stage) waits(tx *sql.Tx, lock func(ctx context.Context) error) {
	s.Helper()
	s.db.KeepWaiting(s, tx, func(ctx context.Context) error { return lock(txlock.WithLabel(ctx, label)) })
}

func (s *stage) manager(opts ...lease.ManagerOption) *lease.Manager {
	s.Helper()
	m, err := lease.NewManager(s.pool, append([]lease.ManagerOption{lease.PurgeEvery(0, time.Hour)}, opts...)...)
	s.must(err)
	s.Cleanup(func() { _ = m.Close(context.WithoutCancel(s.ctx)) })
	return m
}

func (s *stage) getenv(name string) string { return map[string]string{"LOCKSTEP_DSN": s.dsn}[name] }

// call runs the command, and returns all that it prints, as the page has it.
func (s *stage) call(args ...string) (output string, code int) {
	s.Helper()
	output, code = called(s.T, map[string]string{"LOCKSTEP_DSN": s.dsn}, s.stdin, args...)
	return s.normal(output), code
}

// says runs a command, which must return this code and print this text.
func (s *stage) says(want int, text string, args ...string) {
	s.Helper()
	if output, code := s.call(args...); code != want || !strings.Contains(output, text) {
		s.Errorf("lockstep %q returns %d, not %d and %q, and prints:\n%s", args, code, want, text, output)
	}
}

// shows runs a command until it prints what is wanted, and notes it for the page. The
// servers refresh what they show now and then.
func (s *stage) shows(args []string, wanted ...string) {
	s.Helper()
	text, deadline := "", time.Now().Add(time.Minute)
	for same := 0; ; {
		before := text
		output, code := s.call(args...)
		text = "$ lockstep " + strings.NewReplacer(s.names...).Replace(shell(args)) + "\n" + output
		if code != 0 {
			text += fmt.Sprintf("(exit code %d)\n", code)
		}
		missing := ""
		for _, want := range wanted {
			if !strings.Contains(text, want) {
				missing = want
			}
		}
		if same++; text != before {
			same = 0
		}
		golden, once := page.block(s.Name()), slices.Contains(args, "--yes")
		if missing == "" && (golden == nil || !*update && strings.Contains(*golden, text) || *update && (once || same > 2)) {
			break
		}
		if time.Now().After(deadline) {
			if missing == "" {
				break // the comparison with the page will say it
			}
			s.Fatalf("it doesn't print %q:\n%s", missing, text)
		}
		testdb.Refresh()
	}
	s.calls = append(s.calls, text)
}

func shell(args []string) string {
	var words []string
	for _, arg := range args {
		if strings.ContainsAny(arg, " *") {
			arg = "'" + arg + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}

var (
	ports     = regexp.MustCompile(`localhost(:\d+)?|127\.0\.0\.1(:\d+)?`)
	durations = regexp.MustCompile(`\b(\d+h\d+m(\d+s)?|\d+m\d+s|\d+(\.\d+)?s)\b`)
	exact     = regexp.MustCompile(`-?\d+\.\d{3} s`)
	tokens    = regexp.MustCompile(`\b1[789]\d{14}\b`)
	clocks    = regexp.MustCompile(`\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\b`)
	columns   = regexp.MustCompile(` {2,}`)
	numbers   = regexp.MustCompile(`(^|[^:\w])\d+\b`) // not order:42
	// MariaDB can't tell who has a table: transactions of other tests may have it, too.
	strangers = regexp.MustCompile(`(?m)^ +held by session \d+, app_[0-9a-f]+@.*\n`)
)

// normal replaces what differs from one run to the next.
func (s *stage) normal(text string) string {
	sessions := make(map[string]string)
	for i := 0; i < len(s.names); i += 2 {
		if id, is := strings.CutPrefix(s.names[i], "session:"); is {
			sessions[id] = cmp.Or(sessions[id], s.names[i+1]) // a pool gives one to several transactions
		} else {
			text = strings.ReplaceAll(text, s.names[i], s.names[i+1])
		}
	}
	text = numbers.ReplaceAllStringFunc(text, func(found string) string {
		id := found[strings.IndexAny(found, "0123456789"):]
		return strings.TrimSuffix(found, id) + cmp.Or(sessions[id], id)
	})
	text = ports.ReplaceAllString(text, "web-1")
	text = strangers.ReplaceAllString(text, "")
	text = exact.ReplaceAllString(text, "0.000 s")
	text = durations.ReplaceAllString(text, "12s")
	text = tokens.ReplaceAllString(text, "1795385349932725")
	text = clocks.ReplaceAllString(text, "2026-11-23 03:12:00")
	return align(text)
}

// align writes tables anew, whose cells have other widths now.
func align(text string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		cells := columns.ReplaceAllString(line[indent:], "\t")
		_, _ = fmt.Fprintln(w, line[:indent]+cells)
	}
	_ = w.Flush()
	var trimmed strings.Builder
	for line := range strings.Lines(b.String()) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return trimmed.String()
}

// file writes a file for the command, which the page knows by its name.
func (s *stage) file(name, text string) string {
	s.Helper()
	path := file(s.T, s.TempDir(), name, text)
	s.names = append(s.names, path, name)
	return path
}
