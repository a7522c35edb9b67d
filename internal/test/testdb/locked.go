package testdb

import (
	"context"
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Lock is a lock that a transaction has in InnoDB, on a table or on a record of an index.
type Lock struct {
	Table string
	Mode  string // "X" or "S" of a record, and "IX" or "IS" of a table
	Gap   bool   // it isn't of a record of the primary key alone
	Name  string // the first column of the record's primary key, "" of a table
	Slot  int64  // the second column, or the first if it is a number
}

// ShowLocks lets MariaDB show all locks until the end of the test, for Locks.
func (db *DB) ShowLocks(tb testing.TB) {
	tb.Helper()
	var on bool
	if db.Engine() == MySQL {
		return
	}
	check(tb, db.admin.QueryRowContext(tb.Context(), "SELECT @@GLOBAL.innodb_status_output_locks").Scan(&on))
	if !on {
		tb.Cleanup(func() {
			if _, err := db.admin.ExecContext(context.Background(), "SET GLOBAL innodb_status_output_locks = OFF"); err != nil {
				tb.Error(err)
			}
		})
	}
}

// Locks returns the locks that the transaction of a connection has, as the server shows them.
// A row that the transaction itself has made has none before another transaction waits for it.
// ShowLocks comes before.
func (db *DB) Locks(tb testing.TB, connID int64) []Lock {
	tb.Helper()
	read := db.locksOnMariaDB
	if db.Engine() == MySQL {
		read = db.locksOnMySQL
	}
	locks, err := read(tb.Context(), connID)
	if err != nil {
		tb.Fatalf("read the locks of connection %d: %v", connID, err)
	}
	return locks
}

// locksOnMySQL reads until the server shows of all records which they are: it leaves that out
// where it would have to wait for the page.
func (db *DB) locksOnMySQL(ctx context.Context, connID int64) ([]Lock, error) {
	for range 100 {
		locks, err := db.dataLocks(ctx, connID)
		if err != nil || !slices.ContainsFunc(locks, func(l Lock) bool { return l.Name == unknownRecord }) {
			return locks, err
		}
	}
	return nil, errors.New("performance_schema.data_locks doesn't show all of them")
}

const unknownRecord = "?"

func (db *DB) dataLocks(ctx context.Context, connID int64) (locks []Lock, err error) {
	rows, err := db.admin.QueryContext(ctx, `SELECT l.OBJECT_NAME, l.LOCK_MODE, COALESCE(l.INDEX_NAME, '-'), COALESCE(l.LOCK_DATA, ?)
		FROM performance_schema.data_locks l JOIN performance_schema.threads t ON t.THREAD_ID = l.THREAD_ID WHERE t.PROCESSLIST_ID = ?`, unknownRecord, connID)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has what there is to say
	for rows.Next() {
		var l Lock
		var index, data string
		if err := rows.Scan(&l.Table, &l.Mode, &index, &data); err != nil {
			return nil, err
		}
		if index != "-" { // of a record
			mode, rest, _ := strings.Cut(l.Mode, ",")
			l.Mode, l.Gap = mode, rest != "REC_NOT_GAP" || index != "PRIMARY"
			l.Name, l.Slot = recordOnMySQL(data)
		}
		locks = append(locks, l)
	}
	return locks, rows.Err()
}

// recordOnMySQL reads "0x6B, -1", "0x6B" or "300".
func recordOnMySQL(data string) (name string, slot int64) {
	first, second, _ := strings.Cut(data, ", ")
	if digits, ok := strings.CutPrefix(first, "0x"); ok {
		decoded, err := hex.DecodeString(digits)
		if err != nil {
			return data, 0
		}
		slot, _ = strconv.ParseInt(second, 10, 64) // of other tables it isn't there
		return string(decoded), slot
	}
	slot, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return data, 0 // the supremum
	}
	return "", slot
}

// locksOnMariaDB reads until the status has all locks of the transaction: another test may
// switch their output off.
func (db *DB) locksOnMariaDB(ctx context.Context, connID int64) ([]Lock, error) {
	for range 100 {
		if _, err := db.admin.ExecContext(ctx, "SET GLOBAL innodb_status_output_locks = ON"); err != nil {
			return nil, err
		}
		status, err := db.innodbStatus(ctx)
		if err != nil {
			return nil, err
		}
		if locks, ok := locksIn(status, connID); ok {
			return locks, nil
		}
	}
	return nil, errors.New("SHOW ENGINE INNODB STATUS doesn't show all of them")
}

var (
	tableLock  = regexp.MustCompile("^TABLE LOCK table `.*`\\.`(.*)` trx id \\d+ lock mode (\\S+)")
	recordLock = regexp.MustCompile("^RECORD LOCKS .* index (\\S+) of table `.*`\\.`(.*)` trx id \\d+ lock[_ ]mode (\\S+)(.*)")
	firstField = regexp.MustCompile(`^ 0: len \d+; hex ([0-9a-f]*);`)
	nextField  = regexp.MustCompile(`^ 1: len 8; hex ([0-9a-f]{16});`)
)

// locksIn reads the locks of a connection from an InnoDB status, and tells whether it has all.
func locksIn(status string, connID int64) (locks []Lock, all bool) {
	transaction := transactionOf(status, connID)
	printed := 0
	var in Lock
	for line := range strings.Lines(transaction) {
		if match := tableLock.FindStringSubmatch(line); match != nil {
			printed++
			locks = append(locks, Lock{Table: match[1], Mode: match[2]})
		} else if match := recordLock.FindStringSubmatch(line); match != nil {
			printed++
			in = Lock{Table: match[2], Mode: match[3], Gap: match[1] != "PRIMARY" || strings.TrimSpace(match[4]) != "locks rec but not gap"}
		} else if match := firstField.FindStringSubmatch(line); match != nil {
			in.Name, in.Slot = recordOnMariaDB(in.Table, match[1])
			locks = append(locks, in)
		} else if match := nextField.FindStringSubmatch(line); match != nil && strings.HasSuffix(in.Table, "_leases") {
			bits, _ := strconv.ParseUint(match[1], 16, 64) // 16 digits
			locks[len(locks)-1].Slot = int64(bits ^ 1<<63)
		}
	}
	return locks, printed == lockStructsOf(transaction)
}

// recordOnMariaDB decodes the first column of a primary key: a name, or the slot of a center.
func recordOnMariaDB(table, digits string) (name string, slot int64) {
	if strings.HasSuffix(table, "_centers") && len(digits) == 8 {
		slot, _ = strconv.ParseInt(digits, 16, 64) // 8 digits
		return "", slot
	}
	decoded, _ := hex.DecodeString(digits) // the server writes bytes so
	return string(decoded), 0
}
