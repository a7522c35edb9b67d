package fault

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/session"
)

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
		if !errors.Is(got, ErrUnknownOutcome) || !errors.Is(got, err) || errors.Is(got, ErrTxDoomed) || Retryable(got) || !Unknown(got) {
			t.Errorf("%v became %v", err, got)
		}
		of := Of("commit", got, session.Server{RollbackOnTimeout: true})
		if !errors.Is(of, ErrUnknownOutcome) || errors.Is(of, ErrTxDoomed) || Retryable(of) || Outcome(got) != got { //nolint:errorlint // unchanged
			t.Errorf("%v is said as %v", err, of)
		}
	}
}

// TestKeepsOpen proves that only errors of classes and numbers that are known are taken for
// those of a statement alone.
func TestKeepsOpen(t *testing.T) {
	t.Parallel()
	state := func(number uint16, class string) error {
		return &mysql.MySQLError{Number: number, SQLState: [5]byte([]byte(class + "000"))}
	}
	for _, err := range []error{state(1062, "23"), state(1406, "22"), state(1064, "42"), state(1644, "45"), state(1242, "21"),
		answered(1205), answered(3024), answered(1969), answered(3572), answered(1290), answered(1792), context.Canceled, mysql.ErrPktTooLarge} {
		if !KeepsOpen(err) {
			t.Errorf("%v isn't known", err)
		}
	}
	for _, err := range []error{state(1317, "70"), state(1213, "40"), state(1105, "HY"), answered(1317), answered(1053), answered(1927), answered(1180), answered(1206), answered(4711), errors.New("of a wrapper")} {
		if KeepsOpen(err) {
			t.Errorf("%v is taken for one that leaves the transaction open", err)
		}
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
	if err := Join(nil, nil); err != nil {
		t.Errorf("nothing became %v", err)
	}
	if err := Join(a, nil, b); !errors.Is(err, a) || !errors.Is(err, b) {
		t.Errorf("a and b became %v", err)
	}
}
