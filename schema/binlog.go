package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// ErrBinlog is returned when sessions write their statements to the server's binary log, and
// not the rows: a replica executes the statements of locks at other times, and has other
// tokens and leases than the server, which go back when it takes over. At READ COMMITTED the
// server refuses such statements (error 1665).
// https://dev.mysql.com/doc/refman/8.4/en/replication-rbr-safe-unsafe.html
var ErrBinlog = errors.New("schema: the binary log has statements")

// checkBinlog finds a binary log of statements. A server that doesn't know the variables has
// none.
func checkBinlog(ctx context.Context, db *sql.DB) (problem, err error) {
	rows, err := db.QueryContext(ctx, `SHOW VARIABLES WHERE Variable_name = 'log_bin' AND Value = 'ON' OR Variable_name = 'binlog_format' AND Value = 'STATEMENT'`)
	if err != nil {
		return nil, fmt.Errorf("schema: look at the binary log: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	both := 0
	for rows.Next() {
		both++
	}
	if both == 2 {
		problem = fmt.Errorf("%w: replicas get other tokens than this server: SET GLOBAL binlog_format = 'ROW', and reconnect", ErrBinlog)
	}
	return problem, rows.Err()
}
