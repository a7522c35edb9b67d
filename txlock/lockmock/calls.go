package lockmock

import (
	"database/sql/driver"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/txlock"
)

// ExpectationsWereMet does what the mock's method of this name does, with an error in
// words: it lists the calls to lockstep that the test expects and the program has not
// made, in the order in which they are expected. Where a call came with another key, and
// the mock expects its statements in order, the list names that key too. The error wraps
// the mock's own.
func ExpectationsWereMet(mock sqlmock.Sqlmock) error {
	err := mock.ExpectationsWereMet()
	if err == nil {
		return nil
	}
	var missing strings.Builder
	for _, c := range callsOf(mock).all() {
		if !c.made() {
			missing.WriteString("\n  " + c.what + c.instead())
		}
	}
	if missing.Len() == 0 {
		return err // it is about the program's own statements
	}
	return fmt.Errorf("lockmock: these calls are expected and were not made, or not to their end:%s\n%w", &missing, err)
}

// calls are those that a mock expects, in order.
type calls struct {
	mu   sync.Mutex
	list []*call
}

// expecting has the calls of each mock. A mock itself can't keep them.
var expecting sync.Map

func callsOf(mock sqlmock.Sqlmock) *calls {
	c, _ := expecting.LoadOrStore(mock, new(calls))
	return c.(*calls)
}

func (c *calls) all() []*call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.list
}

// call is one that is expected.
type call struct {
	settings
	mock sqlmock.Sqlmock
	what string

	mu         sync.Mutex
	statements []expectation // those that name its key, where there are any
	keyed      bool
	came       string // in place of its key
}

// expectation is one of the mock's.
type expectation interface {
	Lock()
	Unlock()
}

// naming is how the messages name a call of these keys.
func naming(verb string, keys ...txlock.Key) string {
	quoted := make([]string, len(keys))
	for i, key := range keys {
		quoted[i] = fmt.Sprintf("%q", key)
		if _, shared := inner.Asked(key); shared {
			quoted[i] = "Shared(" + quoted[i] + ")"
		}
	}
	return verb + "(" + strings.Join(quoted, ", ") + ")"
}

// newCall makes the mock expect a call, of which no statement is known yet.
func newCall(mock sqlmock.Sqlmock, s settings, what string) *call {
	c := &call{settings: s, mock: mock, what: what}
	of := callsOf(mock)
	of.mu.Lock()
	defer of.mu.Unlock()
	of.list = append(of.list, c)
	return c
}

// add makes a statement one of the call's. Those without a key don't count beside those
// with one: in any order, another call may have been answered by them.
func (c *call) add(e expectation, args ...driver.Value) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keyed := slices.ContainsFunc(args, func(arg driver.Value) bool {
		_, is := arg.(expectedKey)
		return is
	})
	switch {
	case keyed && !c.keyed:
		c.statements, c.keyed = []expectation{e}, true
	case keyed == c.keyed:
		c.statements = append(c.statements, e)
	}
}

// made tells whether the mock was sent all of the call.
func (c *call) made() bool {
	c.mu.Lock()
	statements := c.statements
	c.mu.Unlock()
	for _, e := range statements {
		e.Lock()
		sent := fieldOf(e, "triggered")
		missing := sent.Kind() == reflect.Bool && !sent.Bool()
		e.Unlock()
		if missing {
			return false
		}
	}
	return true
}

// instead says what came in place of the call's key.
func (c *call) instead() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.came == "" {
		return ""
	}
	return ", in place of which came " + c.came
}

// expect queues statements as expectations. Of their arguments those that name a key must
// be the same.
func (c *call) expect(notes []note, keys []txlock.Key, loose bool) {
	for _, n := range notes {
		text := c.text(c.what, n.query, loose)
		args := c.arguments(n.args, keys)
		switch n.verb {
		case prepare:
			c.add(c.mock.ExpectPrepare(text))
		case exec:
			e := c.mock.ExpectExec(text)
			if len(args) > 0 {
				e.WithArgs(args...)
			}
			if n.reply.err != nil {
				e.WillReturnError(n.reply.err)
			} else {
				e.WillReturnResult(sqlmock.NewResult(n.reply.id, max(1, n.reply.affected)))
			}
			c.add(e, args...)
		case query:
			e := c.mock.ExpectQuery(text)
			c.add(e, args...)
			if len(args) > 0 {
				e.WithArgs(args...)
			}
			if n.reply.err != nil {
				e.WillReturnError(n.reply.err)
				continue
			}
			rows := sqlmock.NewRows(n.reply.columns)
			for _, values := range n.reply.rows {
				rows.AddRow(values...)
			}
			e.WillReturnRows(rows)
		}
	}
}

// arguments are what the mock compares those of a statement with.
func (c *call) arguments(args []driver.Value, keys []txlock.Key) []driver.Value {
	expected := make([]driver.Value, len(args))
	for i, arg := range args {
		expected[i] = anyValue{c}
		for _, key := range keys {
			if rowOf(key) == rowAt(arg) {
				expected[i] = expectedKey{key, c}
			}
		}
	}
	return expected
}

// expectedKey is the argument that names the row of a key. Its name is in the mock's
// messages, and so is its String.
type expectedKey struct {
	key  txlock.Key
	call *call
}

func (a expectedKey) Match(v driver.Value) bool {
	if rowAt(v) == rowOf(a.key) {
		return true
	}
	if inOrder(a.call.mock) { // otherwise it may be another call's
		a.call.mu.Lock()
		defer a.call.mu.Unlock()
		a.call.came = rowAt(v).String()
	}
	return false
}

func (a expectedKey) String() string {
	return fmt.Sprintf("the key %q of %s%s", a.key, a.call.what, a.call.instead())
}

// anyValue is another argument: an owner, a token, a time.
type anyValue struct{ call *call }

func (anyValue) Match(driver.Value) bool { return true }
func (a anyValue) String() string        { return "any value, of " + a.call.what }

// comparesText tells whether the mock's matcher is sqlmock.QueryMatcherEqual, which
// can't be asked for: so it is looked at. Where a later version of sqlmock keeps it
// elsewhere, Verbatim says so.
func comparesText(mock sqlmock.Sqlmock) bool {
	matcher := fieldOf(mock, "queryMatcher")
	return matcher.Kind() == reflect.Interface && matcher.Elem().Kind() == reflect.Func &&
		matcher.Elem().Pointer() == reflect.ValueOf(sqlmock.QueryMatcherEqual).Pointer()
}

// fieldOf returns a field that sqlmock keeps for itself, or the zero Value where it has
// none of that name.
func fieldOf(of any, name string) reflect.Value {
	v := reflect.ValueOf(of)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return v.Elem().FieldByName(name)
}

// inOrder tells whether the mock expects statements in the order of their expectations,
// which can't be asked for either.
func inOrder(mock sqlmock.Sqlmock) bool {
	v := fieldOf(mock, "ordered")
	return v.Kind() == reflect.Bool && v.Bool()
}

// rowID is the row that a key locks, as the argument of a statement names it.
type rowID struct {
	name string
	slot int64 // 1 and the slot of a hashed key, 0 for a named one
}

func rowOf(key txlock.Key) rowID {
	if key.Hashed() {
		return rowID{slot: int64(key.Slot()) + 1}
	}
	return rowID{name: key.String()}
}

func rowAt(arg driver.Value) rowID {
	switch v := arg.(type) {
	case []byte:
		return rowID{name: string(v)}
	case string:
		return rowID{name: v}
	case int64:
		return rowID{slot: v + 1}
	}
	return rowID{}
}

func (r rowID) String() string {
	if r.slot > 0 {
		return fmt.Sprintf("a hashed key of slot %d", r.slot-1)
	}
	return fmt.Sprintf("the key %q", r.name)
}
