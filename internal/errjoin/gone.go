package errjoin

import (
	"database/sql"
	"database/sql/driver"
	"errors"
)

// UnlessGone drops the error of closing a connection that is gone already.
func UnlessGone(err error) error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		return nil
	}
	return err
}
