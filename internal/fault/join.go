package fault

import (
	"database/sql"
	"database/sql/driver"
	"errors"
)

// Join joins errors as errors.Join does, but returns a single error unchanged: if nothing else
// has failed, the error of a program's function can still be compared by ==.
func Join(errs ...error) error {
	var only error
	for _, err := range errs {
		switch {
		case err == nil:
		case only != nil:
			return errors.Join(errs...)
		default:
			only = err
		}
	}
	return only
}

// UnlessGone drops the error of closing a connection that is gone already.
func UnlessGone(err error) error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}
