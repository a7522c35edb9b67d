package main

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// own are the servers' own tables of transactions, locks, waits and sessions, with what they have of a
// database. An INSERT_INTENTION that was granted is left out: it makes nobody wait, and a session has
// one only if it had to wait until a rollback, which had removed the row already, freed its locks.
var own = map[testdb.Engine][]struct{ table, query string }{
	testdb.MariaDB: {
		{"information_schema.INNODB_TRX", "SELECT trx_mysql_thread_id, trx_state FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id IN (SELECT id FROM information_schema.PROCESSLIST WHERE db = DATABASE() AND command <> 'Daemon')"},
		{"information_schema.INNODB_LOCKS", "SELECT trx_mysql_thread_id, lock_mode, SUBSTRING_INDEX(REPLACE(lock_table, '`', ''), '.', -1) AS lock_table, lock_data FROM information_schema.INNODB_LOCKS JOIN information_schema.INNODB_TRX ON trx_id = lock_trx_id WHERE lock_table LIKE CONCAT('`', DATABASE(), '`.%') AND (trx_id > 0 OR trx_mysql_thread_id IN (SELECT id FROM information_schema.PROCESSLIST WHERE db = DATABASE()))"},
		{"information_schema.INNODB_LOCK_WAITS", "SELECT r.trx_mysql_thread_id AS requesting_trx, b.trx_mysql_thread_id AS blocking_trx FROM information_schema.INNODB_LOCK_WAITS JOIN information_schema.INNODB_TRX r ON r.trx_id = requesting_trx_id JOIN information_schema.INNODB_TRX b ON b.trx_id = blocking_trx_id AND (b.trx_id > 0 OR b.trx_mysql_thread_id IN (SELECT id FROM information_schema.PROCESSLIST WHERE db = DATABASE())) WHERE r.trx_mysql_thread_id IN (SELECT id FROM information_schema.PROCESSLIST WHERE db = DATABASE())"},
		{"information_schema.PROCESSLIST", "SELECT id, command, state FROM information_schema.PROCESSLIST WHERE db = DATABASE() AND state LIKE 'Waiting for%'"},
	},
	testdb.MySQL: {
		{"information_schema.INNODB_TRX", "SELECT trx_mysql_thread_id, trx_state FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id IN (SELECT processlist_id FROM performance_schema.threads WHERE processlist_db = DATABASE())"},
		{"performance_schema.data_locks", "SELECT trx_mysql_thread_id, lock_mode, lock_status, object_name, lock_data FROM performance_schema.data_locks JOIN information_schema.INNODB_TRX ON trx_id = engine_transaction_id WHERE object_schema = DATABASE() AND lock_type = 'RECORD' AND NOT (lock_mode LIKE '%INSERT_INTENTION' AND lock_status = 'GRANTED')"},
		{"performance_schema.data_lock_waits", "SELECT r.trx_mysql_thread_id AS requesting_trx, b.trx_mysql_thread_id AS blocking_trx FROM performance_schema.data_lock_waits JOIN information_schema.INNODB_TRX r ON r.trx_id = requesting_engine_transaction_id JOIN information_schema.INNODB_TRX b ON b.trx_id = blocking_engine_transaction_id WHERE r.trx_mysql_thread_id IN (SELECT processlist_id FROM performance_schema.threads WHERE processlist_db = DATABASE())"},
		{"performance_schema.metadata_locks", "SELECT processlist_id, lock_type, lock_status, object_name FROM performance_schema.metadata_locks m JOIN performance_schema.threads ON thread_id = owner_thread_id WHERE object_schema = DATABASE() AND object_name IN (SELECT object_name FROM performance_schema.metadata_locks WHERE object_schema = DATABASE() AND lock_status = 'PENDING')"},
	},
}

// told returns what the server's own tables have, without what differs from one run to the next:
// sessions are those of the stage, or -. A line that comes again is left out.
func (s *stage) told() string {
	s.Helper()
	var b strings.Builder
	for _, t := range own[s.db.Engine()] {
		head, rows, err := cells(s.ctx, s.db.Admin(), t.query)
		for ; fault.Unreadable(err); head, rows, err = cells(s.ctx, s.db.Admin(), t.query) { // see until
			testdb.Refresh()
		}
		s.must(err)
		var lines []string
		data := slices.Index(head, "lock_data")
		for _, row := range rows {
			if data > 0 && row[data] == "" {
				s.recall(row[data-1])
			}
			for i := range row {
				row[i] = s.cellOf(head[i], row[i])
			}
			lines = append(lines, strings.Join(row, "  "))
		}
		slices.Sort(lines)
		if lines = slices.Compact(lines); len(lines) > 0 {
			_, _ = fmt.Fprintf(&b, "%s\n%s\n%s\n", t.table, strings.Join(head, "  "), strings.Join(lines, "\n"))
		}
	}
	return align(b.String())
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

var hexadecimal = regexp.MustCompile(`0x([0-9A-F]+)`)

// cellOf writes a cell: a session by its number on the page, and a key as text.
func (s *stage) cellOf(column, text string) string {
	switch {
	case text == "":
		return "NULL"
	case strings.HasSuffix(column, "_id"), column == "id", strings.HasSuffix(column, "_trx"):
		if i := slices.Index(s.names, "session:"+text); i >= 0 {
			return s.names[i+1]
		}
		if text != "0" {
			return "-"
		}
		return text
	case column == "lock_data":
		return hexadecimal.ReplaceAllStringFunc(text, func(digits string) string {
			key, err := hex.DecodeString(digits[len("0x"):])
			s.must(err)
			return string(key)
		})
	}
	return strings.TrimSpace(s.normal(text))
}

// beside compares what the server's own tables have in a situation with the page of the tests, where
// it stands beside what the command says.
func (s *stage) beside(t *testing.T) {
	t.Helper()
	t.Run("by the server", func(t *testing.T) {
		golden := page.block(t.Name())
		text := s.told()
		for same, deadline := 0, time.Now().Add(time.Minute); (golden == nil || *golden != text) && same < 3 && time.Now().Before(deadline); {
			testdb.Refresh()
			before := text
			if text = s.told(); *update && text == before {
				same++
			}
			if golden == nil && !*update {
				break
			}
		}
		if text != "" || golden != nil {
			page.compare(t, text)
		}
	})
}
