package fault

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// answered is the server's error of a number, wrapped as a program might.
func answered(number uint16) error {
	return fmt.Errorf("the statement: %w", &mysql.MySQLError{Number: number, Message: "as it happens"})
}

// TestAbortDuringCommit proves that of the errors during COMMIT only that is known to
// have rolled back the transaction which MySQL's InnoDB gives to one that it has aborted.
func TestAbortDuringCommit(t *testing.T) {
	t.Parallel()
	for message, aborted := range map[string]bool{
		"Fehler 149 - 'Lock deadlock; Retry transaction' beim COMMIT":               true,
		"149 - 'Lock deadlock; Retry transaction' hiba a COMMIT vegrehajtasa soran": true,
		"Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT":          true,
		`Got error 149 "Lock deadlock; Retry transaction" during COMMIT`:            false, // MariaDB's
		"Got error 5 - 'OSError - Input/output error' during COMMIT":                false,
		"Got error 1490 - 'this could be any number' during COMMIT":                 false,
	} {
		err := &mysql.MySQLError{Number: 1180, Message: message}
		if got := Interpret(err); got.Gone != aborted || errors.Is(got.Sentinel, ErrDeadlock) != aborted || Retryable(err) != aborted || Unknown(err) == aborted {
			t.Errorf("%q means %+v, retryable %t, unknown %t", message, got, Retryable(err), Unknown(err))
		}
	}
}

func TestInterpret(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sentinel        error
		gone, onTimeout bool
		numbers         []uint16
	}{
		{ErrDeadlock, true, false, []uint16{1213, 8002, 8022, 8028, 9007}},
		{ErrStaleSnapshot, true, false, []uint16{1020}},
		{ErrStaleSnapshot, false, false, []uint16{159, 1412}},
		{ErrTxDoomed, true, false, []uint16{1206, 4031, 8229}},
		{ErrWaitTimeout, false, true, []uint16{1205}},
		{ErrWaitTimeout, false, false, []uint16{1969, 3024, 3547}},
		{ErrBusy, false, false, []uint16{3572}},
		{ErrPrivilege, false, false, []uint16{1044, 1142, 1143, 1227, 1370}},
		{ErrReadOnly, false, false, []uint16{1290, 1792, 1836}},
		{ErrSchema, false, false, []uint16{1146, 1054, 1364, 1046}},
		{schema.ErrSession, false, false, []uint16{1193}}, // see the tests of schema and lease named TestUnknownVariable
		{schema.ErrEngine, false, false, []uint16{1235, 8108, 8048}},
		{nil, false, false, []uint16{3101, 1180, 1045, 1062, 1064, 1305, 1317, 1047, 1390, 1406, 1568}},
	} {
		for _, number := range c.numbers {
			got := Interpret(answered(number))
			testdb.ErrorIf(t, !errors.Is(got.Sentinel, c.sentinel) || got.Gone != c.gone || got.OnTimeout != c.onTimeout, "%d means %+v, want %+v", number, got, c)
			outside, known := Explain("acquire", answered(number)), c.sentinel == nil || errors.Is(c.sentinel, ErrTxDoomed)
			testdb.ErrorIf(t, !known && !errors.Is(outside, c.sentinel) || errors.Is(outside, ErrTxDoomed) || !strings.HasPrefix(outside.Error(), "acquire: "),
				"%d is explained outside of transactions as %v", number, outside)
			inside := Explain("acquire", fmt.Errorf("%w: %w", ErrTxDoomed, answered(number)))
			testdb.ErrorIf(t, !errors.Is(inside, ErrTxDoomed), "%d is explained in one as %v", number, inside)
			for _, rollbackOnTimeout := range []bool{false, true} {
				doom := Ended(answered(number), session.Server{RollbackOnTimeout: rollbackOnTimeout})
				ends := c.gone || c.onTimeout && rollbackOnTimeout
				testdb.ErrorIf(t, errors.Is(doom, ErrTxDoomed) != ends, "%d (rollback on timeout: %t) dooms: %v, want %t", number, rollbackOnTimeout, doom, ends)
			}
		}
	}
	for text, want := range map[string]error{"lock wait timeout": ErrWaitTimeout, "something else": nil} { // of TiDB
		got := Interpret(&mysql.MySQLError{Number: 1105, Message: text})
		testdb.ErrorIf(t, !errors.Is(got.Sentinel, want) || got.Gone || got.OnTimeout, "1105, %s, means %+v", text, got)
	}
	for _, err := range []error{nil, driver.ErrBadConn, mysql.ErrInvalidConn, context.Canceled, sql.ErrNoRows, sql.ErrTxDone} {
		got := Interpret(err)
		testdb.ErrorIf(t, got != (Verdict{}), "%v means %+v", err, got)
	}
}

func TestTransactionOpen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reply error
		flag  bool
		open  bool
		err   error
	}{
		{nil, false, false, nil},
		{nil, true, false, schema.ErrEngine},
		{answered(1568), false, true, nil}, // an error has no flag
		{answered(1568), true, true, nil},
		{driver.ErrBadConn, true, false, driver.ErrBadConn},
		{sql.ErrTxDone, false, false, sql.ErrTxDone},
	} {
		open, err := TransactionOpen(c.reply, c.flag)
		testdb.ErrorIf(t, open != c.open || !errors.Is(err, c.err), "the reply %v with the flag %t tells %t, %v", c.reply, c.flag, open, err)
	}
}

func TestRetryable(t *testing.T) {
	t.Parallel()
	committed := Committed("CREATE TABLE")
	vitess := func(message string) error {
		return &mysql.MySQLError{Number: 1317, Message: "transaction 7: " + message}
	}
	severalDatabases := &mysql.MySQLError{Number: 1317, Message: "multi-db transaction attempted: [...]"}
	for want, errs := range map[bool][]error{
		true: {
			ErrDeadlock, ErrStaleSnapshot, ErrTxDoomed, ErrConflict,
			fmt.Errorf("order 7: %w", ErrDeadlock), errors.Join(errors.New("order 7"), ErrStaleSnapshot),
			&mysql.MySQLError{Number: 1213}, &mysql.MySQLError{Number: 1020}, &mysql.MySQLError{Number: 1206}, answered(1213), answered(1412),
			vitess("ended at 12:00 (exceeded timeout: 20s)"), vitess("in use: in use: for tx killer rollback"),
			errors.Join(sql.ErrTxDone, answered(1213)),
			Ended(answered(1213), session.Server{}), Ended(answered(1205), session.Server{RollbackOnTimeout: true}), Lost(driver.ErrBadConn),
			Of("lock", answered(1205), session.Server{RollbackOnTimeout: true}),
		},
		false: {
			nil, ErrBusy, ErrWaitTimeout, ErrLost, ErrNotHeld, ErrTooManyHolds, ErrUpgrade, ErrNoTransaction, ErrInvalidKey, ErrInvalidOption,
			ErrOpenRows, ErrReadOnly, ErrSchema, ErrNoQuorum,
			fmt.Errorf("order 7: %w", ErrBusy), errors.Join(ErrBusy, sql.ErrTxDone),
			answered(1205), answered(1062), answered(1317), answered(3101),
			vitess("ended at 12:00 (transaction committed)"), severalDatabases, Ended(severalDatabases, session.Server{}),
			committed, fmt.Errorf("run: %w", committed), errors.Join(committed, ErrDeadlock),
			fmt.Errorf("verify: %w: %w", ErrTxDoomed, ErrUnseen), Unfenced("stock"), fmt.Errorf("compare: %w: %w", ErrConflict, ErrGiven),
			context.Canceled, context.DeadlineExceeded,
			fmt.Errorf("lock: %w: %w", ErrTxDoomed, context.Canceled), errors.Join(ErrDeadlock, context.DeadlineExceeded),
			driver.ErrBadConn, mysql.ErrInvalidConn, fmt.Errorf("commit: %w", mysql.ErrInvalidConn), sql.ErrTxDone, errors.New("no such order"),
		},
	} {
		for _, err := range errs {
			got := Retryable(err)
			testdb.ErrorIf(t, got != want, "Retryable(%v) is %t", err, got)
		}
	}
}

// TestUnknown proves that only an answer of the server other than that to the end of a
// session or statement says that a statement was not executed.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for number, want := range map[uint16]bool{3101: true, 1213: false, 1180: false, 1317: false} {
		got := Overtaken(answered(number))
		testdb.ErrorIf(t, got != want, "%d: overtaken by another primary: %t", number, got)
	}
	for _, err := range []error{driver.ErrBadConn, mysql.ErrInvalidConn, context.Canceled, answered(1053), answered(1317), answered(1927), answered(3169), answered(3101), answered(3100), answered(1180)} {
		testdb.ErrorIf(t, !Unknown(err), "%v says what became of its statement", err)
	}
	for _, err := range []error{nil, schema.ErrEngine, answered(1213), answered(1205), answered(1062), answered(1064)} {
		testdb.ErrorIf(t, Unknown(err), "%v doesn't say what became of its statement", err)
	}
}

// TestPastLimit: a missing privilege is taken for the end of a limit only when the limit is over.
func TestPastLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number uint16
		took   time.Duration
		limit  time.Duration
		want   bool
	}{
		{1142, time.Hour, time.Minute, true},
		{1142, 0, time.Hour, false},
		{1142, time.Hour, 0, false},
		{1064, time.Hour, time.Minute, false},
	} {
		err := PastLimit(answered(c.number), c.took, c.limit)
		testdb.ErrorIf(t, errors.Is(err, ErrWaitTimeout) != c.want, "%d after %v of %v: %v", c.number, c.took, c.limit, err)
	}
}

// TestErrorReachesAll finds the sentinel, the cause and the driver's error in what a call returns.
func TestErrorReachesAll(t *testing.T) {
	t.Parallel()
	plain, rollback := session.Server{}, session.Server{RollbackOnTimeout: true}
	sentinels := []error{ErrWaitTimeout, ErrTxDoomed, ErrBusy, ErrOpenRows, ErrNoTransaction, ErrDeadlock}
	for _, c := range []struct {
		err    error
		server session.Server
		is     []error // of the sentinels
	}{
		{answered(1205), rollback, []error{ErrWaitTimeout, ErrTxDoomed}},
		{fmt.Errorf("%w: %w", ErrBusy, answered(1205)), plain, []error{ErrBusy}}, // a try on MariaDB
		{fmt.Errorf("%w: %w", ErrBusy, answered(1205)), rollback, []error{ErrBusy, ErrTxDoomed}},
		{answered(1969), rollback, []error{ErrWaitTimeout}},
		{fmt.Errorf("exec: %w", context.DeadlineExceeded), plain, nil},
		{ErrOpenRows, plain, []error{ErrOpenRows}},
		{mysql.ErrBusyBuffer, plain, []error{ErrOpenRows}},
		{sql.ErrTxDone, plain, []error{ErrNoTransaction}},
		{sql.ErrConnDone, plain, []error{ErrNoTransaction}},
		{ErrEnded, plain, []error{ErrNoTransaction}},
		{Ended(answered(1213), plain), plain, []error{ErrTxDoomed, ErrDeadlock}},
		{Lost(fmt.Errorf("%w: %w", context.Canceled, driver.ErrBadConn)), plain, []error{ErrTxDoomed}},
	} {
		err := Of(`lock "k"`, c.err, c.server)
		for _, sentinel := range sentinels {
			testdb.ErrorIf(t, errors.Is(err, sentinel) != slices.Contains(c.is, sentinel), "%v (%+v) is said as %v: is it %v?", c.err, c.server, err, sentinel)
		}
		var before, after *mysql.MySQLError
		testdb.ErrorIf(t, !errors.Is(err, c.err) || errors.As(c.err, &before) && (!errors.As(err, &after) || after != before), "%v is not in %v", c.err, err)
	}
}

// FuzzServerError: whatever a server answers, the error of a call has it as its cause, says what was asked for, and is started
// again only where the server has rolled back.
func FuzzServerError(f *testing.F) {
	for _, number := range []uint16{0, 1020, 1062, 1205, 1206, 1213, 1290, 1317, 1792, 1927, 1969, 3024, 3169, 3547, 3572, 4031} {
		f.Add(number, "message", false)
		f.Add(number, "", true)
	}
	f.Fuzz(func(t *testing.T, number uint16, message string, rollbackOnTimeout bool) {
		answer := &mysql.MySQLError{Number: number, Message: message}
		server := session.Server{RollbackOnTimeout: rollbackOnTimeout}
		err := Of("lock", fmt.Errorf("execute: %w", answer), server)
		var cause *mysql.MySQLError
		testdb.ErrorIf(t, !errors.As(err, &cause) || cause != answer || !strings.HasPrefix(err.Error(), "lock: "), "%v became %v", answer, err)
		verdict := Interpret(err)
		gone := verdict.Gone || verdict.OnTimeout && rollbackOnTimeout
		testdb.ErrorIf(t, Retryable(err) != (gone && !errors.Is(err, schema.ErrEngine)), "%v: retryable %t, rolled back %t", err, Retryable(err), gone)
		if doomed := Ended(answer, server); (doomed != nil) != gone || doomed != nil && !errors.Is(doomed, ErrTxDoomed) {
			t.Errorf("%v dooms its transaction: %v, rolled back %t", answer, doomed, gone)
		}
		outside := Explain("acquire", answer)
		testdb.ErrorIf(t, !errors.Is(outside, answer) || errors.Is(outside, ErrTxDoomed), "outside of transactions %v became %v", answer, outside)
		testdb.ErrorIf(t, Retryable(answer) && Unknown(answer), "%v: executed or not, and rolled back for certain", answer)
	})
}

// TestChanged feeds the reader of counts what is none of one row, and none.
func TestChanged(t *testing.T) {
	t.Parallel()
	for n, known := range map[int64]bool{-1: false, 0: true, 1: true, 2: true, 3: false} {
		changed, err := Changed("Once")(n, nil)
		testdb.ErrorIf(t, errors.Is(err, ErrReply) == known || known && changed != (n > 0), "%d changed rows are read as %t, %v", n, changed, err)
	}
	_, err := Changed("Once")(1, ErrDeadlock)
	testdb.ErrorIf(t, !errors.Is(err, ErrDeadlock), "%v", err)
}

// TestOutcome proves which errors of COMMIT are known to leave nothing committed: all others
// are ErrUnknownOutcome, which is never run again.
func TestOutcome(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, answered(1213), answered(1020), answered(1205), answered(1290), answered(1399), answered(4031),
		&mysql.MySQLError{Number: 1317, Message: "transaction 7: ended at 12:00 (exceeded timeout: 20s)"}, sql.ErrTxDone, context.Canceled, ErrEnded, Ended(answered(1206), session.Server{}), Refused(answered(3101)), Unfenced("x")} {
		if got := Outcome(err); got != err { //nolint:errorlint // unchanged
			t.Errorf("%v became %v", err, got)
		}
	}
	for _, err := range []error{answered(1317), &mysql.MySQLError{Number: 1317, Message: "transaction 7: ended at 12:00 (transaction committed)"}, answered(1053), answered(1927), answered(3101), answered(3100), answered(1180), answered(1047), answered(4711),
		mysql.ErrInvalidConn, driver.ErrBadConn, errors.Join(context.Canceled, mysql.ErrInvalidConn), errors.New("of a wrapper")} {
		got := Outcome(err)
		testdb.ErrorIf(t, !errors.Is(got, ErrUnknownOutcome) || !errors.Is(got, err) || errors.Is(got, ErrTxDoomed) || Retryable(got) || !Unknown(got),
			"%v became %v", err, got)
		of := Of("commit", got, session.Server{RollbackOnTimeout: true})
		if !errors.Is(of, ErrUnknownOutcome) || errors.Is(of, ErrTxDoomed) || Retryable(of) || Outcome(got) != got { //nolint:errorlint // unchanged
			t.Errorf("%v is said as %v", err, of)
		}
	}
}

// TestKeepsOpen: only errors of classes and numbers that are known are taken for those of a statement alone.
func TestKeepsOpen(t *testing.T) {
	t.Parallel()
	state := func(number uint16, class string) error {
		return &mysql.MySQLError{Number: number, SQLState: [5]byte([]byte(class + "000"))}
	}
	for _, err := range []error{state(1062, "23"), state(1406, "22"), state(1064, "42"), state(1644, "45"), state(1242, "21"),
		answered(1205), answered(3024), answered(1969), answered(3572), answered(1290), answered(1792), context.Canceled, mysql.ErrPktTooLarge} {
		testdb.ErrorIf(t, !KeepsOpen(err), "%v isn't known", err)
	}
	for _, err := range []error{state(1317, "70"), state(1213, "40"), state(1105, "HY"), answered(1317), answered(1053), answered(1927), answered(1180), answered(1206), answered(4711), errors.New("of a wrapper")} {
		testdb.ErrorIf(t, KeepsOpen(err), "%v is taken for one that leaves the transaction open", err)
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	a, b := errors.New("a"), errors.New("b")
	for _, errs := range [][]error{{a}, {a, nil}, {nil, a}, {nil, a, nil}} {
		if err := Join(errs...); err != a { //nolint:errorlint // what is tested
			t.Errorf("%v became %v", errs, err)
		}
	}
	none, both := Join(nil, nil), Join(a, nil, b)
	testdb.ErrorIf(t, none != nil || !errors.Is(both, a) || !errors.Is(both, b), "nothing became %v, a and b %v", none, both)
}
