package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

var update = flag.Bool("update", false, "write docs/operations.md and the files of testdata anew")

// The files with what the commands print: the page for operators, what differs from it only by
// the server or is not worth a reader's time, and the forms of JSON.
const (
	pagePath = "../../docs/operations.md"
	restPath = "testdata/operations.md"
	jsonPath = "json.md"
)

// operations are these files. An example stands below a comment with the name of the situation
// and the server, or both.
type operations struct {
	mu    sync.Mutex
	texts map[string]string // by the path of the file
}

var page = func() *operations {
	o := &operations{texts: map[string]string{}}
	for _, path := range []string{pagePath, restPath, jsonPath} {
		text, _ := os.ReadFile(path) // where it is missing, its blocks are
		o.texts[path] = string(text)
	}
	return o
}()

// write writes a file anew.
func (o *operations) write(t *testing.T, path, text string) {
	t.Helper()
	o.texts[path] = text
	err := os.WriteFile(path, []byte(text), 0o644)
	testdb.ErrorIf(t, err != nil, "%v", err)
}

// block returns the example of a situation, by the name of its test, or nil.
func (o *operations) block(test string) *string {
	o.mu.Lock()
	defer o.mu.Unlock()
	name, engine := situationOf(test)
	for _, who := range []string{engine, "both"} {
		for _, text := range o.texts {
			if found := blockOf(name, who).FindStringSubmatch(text); found != nil {
				return &found[2]
			}
		}
	}
	return nil
}

func blockOf(name, who string) *regexp.Regexp {
	return regexp.MustCompile("(?s)(<!-- " + regexp.QuoteMeta(name+": "+who) + " -->\n```console\n)(.*?)(```\n)")
}

// situationOf reads the name of a test: TestSituations/mysql/a_forgotten_transaction.
func situationOf(test string) (name, engine string) {
	parts := strings.Split(test, "/")
	return strings.ReplaceAll(strings.Join(parts[2:], ", "), "_", " "), parts[1]
}

// compare compares an example with the page, or writes it.
func (o *operations) compare(t *testing.T, text string) {
	t.Helper()
	have := o.block(t.Name())
	if have == nil {
		t.Errorf("docs/operations.md and testdata/operations.md have no example for this test:\n%s", text)
		return
	}
	if *have == text {
		return
	}
	if !*update {
		t.Errorf("the command prints:\n%s\ndocs/operations.md has (go test -update writes it):\n%s", text, *have)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	name, engine := situationOf(t.Name())
	for _, who := range []string{engine, "both"} {
		for path, old := range o.texts {
			if found := blockOf(name, who).FindStringSubmatch(old); found != nil {
				o.write(t, path, strings.Replace(old, found[0], found[1]+text+found[3], 1))
				return
			}
		}
	}
}

// forms are what the commands print by --json.
var forms = []struct {
	command string
	value   any
}{
	{"locks", locksForm{}}, {"leases", leasesForm{}}, {"waits", waitsForm{}}, {"show KEY", shown{}}, {"jobs", ops.Jobs{}}, {"jobs show NAME", jobForm{}}, {"jobs pause NAME", changedForm{}}, {"once", onceForm{}},
	{"leaders", leadersForm{}}, {"ask KEY", askedForm{}}, {"release KEY", releasedForm{}},
	{"install", installedForm{}}, {"check", findingsForm{}}, {"purge", removedForm{}}, {"bench", measuredForm{}}, {"version", versionForm{}},
}

// form writes the types of what the commands print, each once.
type form struct {
	strings.Builder
	seen map[reflect.Type]bool
	next []reflect.Type
}

// name names a type, whose fields are written later.
func (f *form) name(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.Pointer:
		return f.name(t.Elem())
	case t.Kind() == reflect.Slice:
		return "list of " + f.name(t.Elem())
	case t.Kind() == reflect.Map:
		return "object of " + f.name(t.Elem())
	case t.Kind() == reflect.Struct:
		if !f.seen[t] {
			f.seen[t] = true
			f.next = append(f.next, t)
		}
		return t.Name()
	case strings.Contains(t.Kind().String(), "int"):
		return "integer"
	}
	return t.Kind().String()
}

// fields writes the fields of a type.
func (f *form) fields(t reflect.Type) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			f.fields(field.Type)
		case field.IsExported():
			if strings.HasPrefix(options, "omit") {
				name += "?"
			}
			_, _ = fmt.Fprintf(f, "  %-16s %s\n", name, f.name(field.Type))
		}
	}
}

var formBlock = regexp.MustCompile("(?s)(<!-- json -->\n```text\n)(.*?)(```\n)")

// TestJSONForm proves that the page documents the JSON of each command, whose form stays.
func TestJSONForm(t *testing.T) {
	b := form{seen: map[reflect.Type]bool{}}
	for _, form := range forms {
		_, _ = fmt.Fprintf(&b, "lockstep %s --json\n", form.command)
		b.fields(reflect.TypeOf(form.value))
	}
	for len(b.next) > 0 {
		t := b.next[0]
		b.next = b.next[1:]
		_, _ = fmt.Fprintf(&b, "%s\n", t.Name())
		b.fields(t)
	}
	have := formBlock.FindStringSubmatch(page.texts[jsonPath])
	switch {
	case have == nil:
		t.Fatal("json.md has no block for the forms")
	case have[2] == b.String():
	case *update:
		page.mu.Lock()
		defer page.mu.Unlock()
		page.write(t, jsonPath, strings.Replace(page.texts[jsonPath], have[0], have[1]+b.String()+have[3], 1))
	default:
		t.Errorf("the form has changed:\n%s\nThe page has:\n%s", b.String(), have[2])
	}
}

// cells returns the columns and the rows of a query, NULL as "".
func cells(ctx context.Context, db gen.DBTX, query string) (columns []string, all [][]string, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if columns, err = rows.Columns(); err != nil {
		return nil, nil, err
	}
	for rows.Next() {
		row, into := make([]string, len(columns)), make([]any, len(columns))
		for i := range into {
			into[i] = &sql.Null[string]{}
		}
		if err := rows.Scan(into...); err != nil {
			return nil, nil, err
		}
		for i := range row {
			row[i] = into[i].(*sql.Null[string]).V
		}
		all = append(all, row)
	}
	return columns, all, rows.Err()
}

// TestViews proves that any SQL client sees names, not hex, and that the command and a view know the tables of
// locks, whatever quotes the session's sql_mode has for names.
func TestViews(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		s.says(done, "", "install", "--views", "--yes")
		s.must(schema.InstallViews(s.ctx, s.db.Admin())) // again
		err := schema.InstallViews(s.ctx, s.pool)
		testdb.ErrorIf(t, !errors.Is(err, schema.ErrPrivilege) || !strings.Contains(err.Error(), "GRANT CREATE VIEW"), "InstallViews without privileges: %v", err)
		s.acquire("web-1/4711", "nightly report")
		s.locks(orders.Key(42))
		s.waitsFor(orders.Key(42))
		s.rows("SELECT kind, name, mode, owner, label FROM lockstep_held WHERE kind = 'lease'", "lease|report|exclusive|web-1/4711|nightly report")
		s.rows("SELECT kind, name, mode, session FROM lockstep_held WHERE kind = 'lock'", "lock|order:42|exclusive|51")
		s.printed("leases", "nightly report")
		s.printed("locks", "order:42", "order:42") // that is held, and that is waited for
		const waits, want = "SELECT kind, name, session, blocked_by FROM lockstep_waits", "lock|order:42|52|51"
		s.rows(waits, want)
		quotes := func(c *mysql.Config) { c.Params = map[string]string{"sql_mode": "'ANSI_QUOTES'"} }
		s.dsn = s.db.AdminDSN(quotes)
		s.shows([]string{"waits"}, "order:42: exclusive")
		s.until(s.db.ConnectAdmin(s, quotes), waits, want, func(row string) bool { return row == want })
	})
}

// TestViewOfLateLocks proves that the view of what is held shows each lock once, whether it is waited for
// or not, and doesn't take the age of the transaction for that of the lock.
func TestViewOfLateLocks(t *testing.T) {
	onServers(t, func(_ *testing.T, s *stage) {
		s.must(schema.InstallViews(s.ctx, s.db.Admin()))
		hashed := txlock.NewFamily[int]("cart", txlock.Hashed()).Key(42)
		s.db.Exec(s, fmt.Sprintf("INSERT IGNORE INTO lockstep_centers VALUES (%d, 0, '-', 0, 0)", hashed.Slot()))
		s.must(txlock.Ensure(s.ctx, s.pool, orders.Key(42), orders.Key(43)))
		tx, scope := s.begin()
		s.must(tx.QueryRowContext(s.ctx, "SELECT COUNT(*) FROM lockstep_once").Scan(new(int)))
		time.Sleep(3 * time.Second)
		s.must(testdb.Err(scope.Lock(s.ctx, orders.Key(42))))
		s.must(testdb.Err(scope.Lock(s.ctx, orders.Key(43))))
		s.must(testdb.Err(scope.Lock(s.ctx, hashed)))
		for _, key := range []txlock.Key{orders.Key(42), hashed} {
			s.waitsFor(key)
		}
		session := testdb.Got(s.db.Admin().Conn(s.ctx))(s)
		defer func() { s.must(session.Close()) }()
		query, want := "SELECT COUNT(DISTINCT name), COUNT(*), COUNT(held_s), MIN(transaction_s) >= 3 FROM lockstep_held", "3|3|0|1"
		if s.db.Engine() == testdb.MariaDB {
			s.must(testdb.Err(session.ExecContext(s.ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")))
			s.must(testdb.Err(session.ExecContext(s.ctx, "SET sql_mode = 'ANSI_QUOTES'"))) // in which tables are named otherwise
			query, want = "SELECT COUNT(DISTINCT name), COUNT(*), SUM(contended), MAX(held_s) <= MIN(transaction_s) - 2, COUNT(owner) FROM lockstep_held", "3|3|2|1|3"
		}
		s.until(session, query, want, func(row string) bool { return row == want })
	})
}

// TestViewsOfOneDatabase proves that the views show no locks of another database, whose
// name LIKE takes for the same.
func TestViewsOfOneDatabase(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		s.must(schema.InstallViews(s.ctx, s.db.Admin()))
		other := strings.Replace(s.db.Name(), "_", "x", 1)
		testdb.FatalIf(t, other == s.db.Name(), "the name %s has no _", other)
		s.db.Exec(t, "CREATE DATABASE "+other)
		t.Cleanup(func() {
			s.must(testdb.Err(s.db.Admin().ExecContext(context.WithoutCancel(s.ctx), "DROP DATABASE "+other)))
		})
		s.db.Exec(t, "CREATE TABLE "+other+".lockstep_locks LIKE lockstep_locks")
		lock := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+other+".lockstep_locks SET name = 'theirs', token = 1, conn_id = 1, locked_us = 1, owner = '' ON DUPLICATE KEY UPDATE name = name")
			return err
		}
		begin := func() *sql.Tx {
			tx := testdb.Got(s.db.Admin().BeginTx(s.ctx, nil))(s)
			t.Cleanup(func() { _ = tx.Rollback() })
			return tx
		}
		s.must(lock(s.ctx, begin()))
		waiter := begin()
		s.db.KeepWaiting(t, waiter, func(ctx context.Context) error { return lock(ctx, waiter) })
		s.rows("SELECT trx_state FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%"+other+"%'", "LOCK WAIT")
		for _, view := range []string{"lockstep_waits", "lockstep_held"} {
			s.rows("SELECT COUNT(*) FROM "+view, "0")
		}
	})
}

// rows asks until a query has a row.
func (s *stage) rows(query, want string) {
	s.Helper()
	s.until(s.db.Admin(), query, want, func(row string) bool { return row == want })
}

// until asks until a query has such a row as is wanted. MySQL lists no transactions while another
// test executes a statement that it can't convert.
func (s *stage) until(db gen.DBTX, query, want string, is func(row string) bool) {
	s.Helper()
	var seen []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); testdb.Refresh() {
		var err error
		if seen, err = s.read(db, query); fault.Unreadable(err) {
			continue
		}
		s.must(err)
		if slices.ContainsFunc(seen, is) {
			return
		}
		if slices.ContainsFunc(seen, func(row string) bool { return strings.Contains(row, "||") }) {
			s.recall("lockstep_locks") // the row has no name
		}
	}
	s.Fatalf("%s returns %q, and not %s", query, seen, want)
}

// recall reads a table, whose pages may have left the server's memory: it lists locks without their rows then.
func (s *stage) recall(table string) {
	s.Helper()
	s.must(s.db.Admin().QueryRowContext(s.ctx, "SELECT COUNT(*) FROM "+table).Scan(new(int)))
}

// read returns the rows of a query, as they stand on the page.
func (s *stage) read(db gen.DBTX, query string) (all []string, err error) {
	_, rows, err := cells(s.ctx, db, query)
	for _, row := range rows {
		all = append(all, strings.TrimSpace(s.normal(strings.Join(row, "|"))))
	}
	return all, err
}

// printed executes what the command sql prints, as a DBA does, until it shows what is wanted.
func (s *stage) printed(what string, want ...string) {
	s.Helper()
	all := testdb.Got(statements(what, s.db.Engine() == testdb.MariaDB))(s)
	session := testdb.Got(s.db.Admin().Conn(s.ctx))(s)
	defer func() { s.must(session.Close()) }()
	for _, query := range all {
		if strings.HasPrefix(query, "SET") {
			s.must(testdb.Err(session.ExecContext(s.ctx, query)))
			continue
		}
		s.until(session, query, want[0], func(row string) bool { return strings.Contains(row, want[0]) })
		want = want[1:]
	}
}

// picture is one of two locks and a lease, after so many seconds.
func picture(second int) looked {
	at := time.Date(2026, 11, 23, 3, 12, second, 0, time.UTC)
	token := uint64(at.UnixMicro())
	before := token - 2500
	return looked{updates: float64(1000 + 100*second), Picture: &ops.Picture{
		Taken: at, Version: "11.4.2-MariaDB",
		Locks: []ops.Lock{
			{Row: ops.Row{Kind: ops.Named, Key: "order:42"}, Mode: ops.Exclusive, Session: 51, Owner: "web-1/4711", Token: token, Before: before, Held: 5, Waiters: 1},
			{Row: ops.Row{Kind: ops.Named, Key: "order:77\x1b[2J"}, Mode: ops.Exclusive, Session: 51, Held: 9},
		},
		Leases:   []ops.Lease{{Key: "report", Kind: "exclusive", Owner: "web-2/815", Token: 7, Held: 3600, TTL: 30, Left: 20, Renewed: 10}},
		Sessions: map[uint64]ops.Session{51: {ID: 51, User: "app", Host: "web-1", Command: "Sleep", For: 5}},
	}}
}

// firsts returns the first words of the lines below the head.
func firsts(text string) (words []string) {
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[3:] {
		words = append(words, strings.Fields(line)[0])
	}
	return words
}

// TestTop proves that the live table sorts as it is told, shows rates and errors, scrolls, and ends.
func TestTop(t *testing.T) {
	t.Parallel()
	s := screen{by: "waiters", rates: new(ops.Rates), width: 120, height: 30, every: time.Second}
	s.see(picture(0))
	press := func(model tea.Model, key rune) screen {
		next, _ := model.Update(tea.KeyPressMsg{Code: key, Text: string(key)})
		return next.(screen)
	}
	for _, c := range []struct {
		key  rune
		want string
	}{
		{'w', `order:42 report "order:77\x1b[2J"`}, {'a', `report "order:77\x1b[2J" order:42`}, {'k', `"order:77\x1b[2J" order:42 report`},
	} {
		testdb.Equal(t, fmt.Sprintf("how %c sorts", c.key), strings.Join(firsts(press(s, c.key).text()), " "), c.want)
	}
	old := picture(0)
	old.Ages = ops.Ages{LocksAge: 9, LeasesAge: 12}
	s.see(old)
	testdb.Says(t, "how old locks and leases are", s.text(), "2 locks 9.0s ago, 1 leases 12s ago")
	partly := picture(1)
	partly.Gaps = []ops.Gap{{What: "programs are not known"}, {What: "what other users hold is not known", Fix: "GRANT PROCESS ON *.* TO 'op'@'%'", Hides: true, Denied: true}}
	s.see(partly)
	if text := s.text(); !strings.Contains(text, "\nNot seen: what other users hold is not known: GRANT PROCESS ON *.* TO 'op'@'%'\nKEY ") || strings.Contains(text, "programs") {
		t.Errorf("it doesn't say what isn't seen:\n%s", text)
	}
	next, again := s.Update(picture(2))
	testdb.ErrorIf(t, again == nil, "it doesn't look again")
	rated := press(next, 'r')
	if text := rated.text(); firsts(text)[0] != "order:42" || !strings.Contains(text, " 100.0 ") {
		t.Errorf("a key that was granted 2.5 ms after the grant before is not first, or not limited by the server's count:\n%s", text)
	}
	next, _ = rated.Update(looked{err: errors.New("connection refused")})
	text := next.(screen).text()
	testdb.ErrorIf(t, !strings.Contains(text, "connection refused") || !strings.Contains(text, "order:42"), "an error is not shown above what was seen last:\n%s", text)
	next, _ = next.Update(tea.KeyPressMsg{Code: tea.KeyDown})
	got := firsts(next.(screen).text())
	testdb.ErrorIf(t, len(got) != 2, "after an arrow down there are %q", got)
	next, _ = next.Update(tea.WindowSizeMsg{Width: 40, Height: 5})
	for _, line := range strings.Split(strings.TrimSpace(next.(screen).text()), "\n") {
		testdb.ErrorIf(t, len([]rune(line)) > 40, "the line %q is wider than the screen", line)
	}
	next, _ = next.Update(tea.WindowSizeMsg{Width: 20, Height: 2})
	before := next.(screen).from
	next, _ = next.Update(tea.KeyPressMsg{Code: tea.KeyPgDown})
	testdb.Equal(t, "the first line of a small screen after page down", next.(screen).from, before+1)
	next, _ = next.Update(tea.KeyPressMsg{Code: tea.KeyPgUp})
	testdb.Equal(t, "the first line of a small screen after page up", next.(screen).from, before)
	_, end := next.Update(tea.KeyPressMsg{Code: 'q', Text: "q"})
	testdb.ErrorIf(t, end == nil || end() != tea.Quit(), "q doesn't end it")
}

// TestTopAt80Columns proves that 80 columns show who holds a key, in 16 characters at least, and that
// the rest is reached sideways, beside the key.
func TestTopAt80Columns(t *testing.T) {
	t.Parallel()
	var model tea.Model = func() screen {
		s := screen{by: "waiters", rates: new(ops.Rates), width: 80, height: 24}
		s.see(picture(0))
		return s
	}()
	line := func() string {
		for text := range strings.Lines(model.(screen).text()) {
			if strings.HasPrefix(text, "order:42 ") {
				return strings.TrimRight(text, "\n")
			}
		}
		return ""
	}
	text := line()
	testdb.ErrorIf(t, !strings.Contains(text, "51 app@web-1 ") || len([]rune(text)) > 80, "80 columns show %q", text)
	head := strings.Split(model.(screen).text(), "\n")[2]
	testdb.ErrorIf(t, 80-strings.Index(head, "HOLDER") < 16, "the holder has fewer than 16 characters: %q", head)
	scrolled := func(code rune, wanted string) {
		t.Helper()
		for range 40 {
			if strings.Contains(line(), wanted) {
				return
			}
			model, _ = model.Update(tea.KeyPressMsg{Code: code})
		}
		t.Errorf("%q isn't reached: %q", wanted, line())
	}
	scrolled(tea.KeyRight, "51 app@web-1 web-1/4711")
	scrolled(tea.KeyRight, "idle 5.0s")
	for range 60 { // beyond the end of all lines
		model, _ = model.Update(tea.KeyPressMsg{Code: tea.KeyRight})
	}
	scrolled(tea.KeyLeft, "exclusive")
}

// TestTopNeedsATerminal proves that top says so if its input or output is none.
func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel()
	null := testdb.Got(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	defer func() { _ = null.Close() }()
	read, write, err := os.Pipe()
	check(t, err)
	defer func() { _, _ = read.Close(), write.Close() }()
	for name, c := range map[string]struct {
		in  io.Reader
		out io.Writer
	}{
		"input": {null, io.Discard}, "output": {strings.NewReader(""), write},
	} {
		var said bytes.Buffer
		code := run(t.Context(), []string{"top"}, func(string) string { return "" }, c.in, c.out, &said)
		testdb.ErrorIf(t, code != usage || !strings.Contains(said.String(), "needs a terminal"), "%s: top returns %d, and prints %s", name, code, &said)
	}
}

// TestScreens proves that an interrupt ends a question at once, and top as q does, which shows what is held.
func TestScreens(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		s.locks(orders.Key(42))
		for _, c := range []struct {
			command, until string
			pressed        string // "" for an interrupt
			code           int
			says           string // behind the name of the command
		}{{"purge", "Type yes", "", declined, "nothing was done"}, {"top", "lockstep top", "", done, ""}, {"top", "order:42", "q", done, ""}} {
			ctx, interrupt := context.WithCancel(t.Context())
			keyboard, typed := io.Pipe()
			defer func() { _ = typed.Close() }()
			screen := &watched{until: c.until, then: interrupt}
			if c.pressed != "" {
				screen.then = func() { _, _ = io.WriteString(typed, c.pressed) }
			}
			code := make(chan int, 1)
			go func() { code <- run(ctx, []string{c.command}, s.getenv, keyboard, screen, screen) }()
			select {
			case got := <-code:
				if _, says, _ := strings.Cut(screen.text.String(), "lockstep: "); got != c.code || !strings.HasPrefix(says, c.says) || c.says == "" && says != "" {
					t.Errorf("%s returns %d, and prints %s", c.command, got, screen.text.String())
				}
			case <-time.After(time.Minute):
				t.Errorf("%s doesn't end", c.command)
			}
		}
	})
}

// watched is a screen that does something when it shows a text.
type watched struct {
	mu    sync.Mutex
	text  strings.Builder
	until string
	then  func()
	once  sync.Once
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if strings.Contains(w.text.String(), w.until) {
		w.once.Do(func() { go w.then() })
	}
	return len(p), nil
}

// topPage is what top shows of MySQL: the picture in the README is made of it by make diagrams.
const topPage = "../../docs/diagrams/lockstep-top.txt"

// TestTopPage proves that top shows what the README does.
func TestTopPage(t *testing.T) {
	t.Parallel()
	p := picture(0)
	p.Version, p.Waits = "9.7.4", make([]ops.Wait, 2)
	p.Sessions[51] = ops.Session{ID: 51, User: "app", Host: "web-1", Command: "Sleep", For: 12, Statement: "lockstep LockNamed", Last: true}
	lock := func(key string, waiters ops.Count) ops.Lock {
		return ops.Lock{Row: ops.Row{Kind: ops.Named, Key: key}, Mode: ops.Exclusive, Session: 51, Owner: label, Held: 12, Waiters: waiters}
	}
	lease := func(key, kind, owner string) ops.Lease {
		return ops.Lease{Key: key, Kind: kind, Owner: owner, Label: "the nightly report", Held: 100, TTL: 30, Left: 25, Renewed: 5}
	}
	p.Locks, p.Leases = []ops.Lock{lock("order:42", 2), lock("order:77", 0)}, []ops.Lease{lease("exports", "permit", "web-3/77"), lease("report", "exclusive", "web-2/815")}
	live := screen{by: "waiters", rates: new(ops.Rates), width: 160, height: 30, every: time.Second}
	live.see(p)
	page := live.text()
	if want, _ := os.ReadFile(topPage); *update {
		check(t, os.WriteFile(topPage, []byte(page), 0o644))
	} else if page != string(want) {
		t.Errorf("top shows:\n%s\n%s has (go test -update writes it):\n%s", page, topPage, want)
	}
}
