package locktest

import (
	"database/sql/driver"

	"github.com/dca00107/lockstep/internal/driverrows"
)

// rows are those of a statement of the program. While they are open, its connection can send nothing.
type rows struct {
	driverrows.Rows
	conn   *conn
	closed bool
}

// rows notes that rows of a statement are open.
func (c *conn) rows(base driver.Rows, err error) (driver.Rows, error) {
	if err != nil {
		return base, err
	}
	c.open++
	return &rows{Rows: driverrows.Rows{Rows: base}, conn: c}, nil
}

func (r *rows) Close() error {
	if !r.closed {
		r.closed = true
		r.conn.open--
	}
	return r.Rows.Close()
}
