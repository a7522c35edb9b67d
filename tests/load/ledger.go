package load

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// fate is what a client knows of a transaction.
type fate int

const (
	refused fate = iota // it was rolled back
	acknowledged
	unknown // nobody has answered its COMMIT
)

// Ledger is what clients know of the transactions of one kind. Each writes a mark, so
// that the data tell in the end what has become of it, and whether that was done in a
// transaction.
type Ledger struct {
	Kind   string
	inside string

	mu     sync.Mutex
	fates  map[string]fate
	errors map[string]int // of single transactions, by their beginnings
}

// NewLedger makes one. inside is an expression that tells whether it is in a transaction:
// see Inside.
func NewLedger(kind, inside string) *Ledger {
	return &Ledger{Kind: kind, inside: inside, fates: make(map[string]fate), errors: make(map[string]int)}
}

// Begin begins a call.
func (l *Ledger) Begin() *Attempts { return &Attempts{Ledger: l} }

// Attempts are the transactions of one call, which may run several.
type Attempts struct {
	*Ledger
	marks []string
	Done  bool // the last one has come to its COMMIT
}

// Mark begins a transaction that runs body and leaves a mark.
func (a *Attempts) Mark(ctx context.Context, tx *sql.Tx, body func() error) error {
	mark := rand.Text()
	a.marks, a.Done = append(a.marks, mark), false
	if err := body(); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO marks VALUES (?, ?, "+a.inside+")", mark, a.Kind)
	a.Done = err == nil
	return err
}

// Settle notes what the call has returned. What it has run again was rolled back.
func (a *Attempts) Settle(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note(err)
	for i, mark := range a.marks {
		switch {
		case i < len(a.marks)-1:
			a.fates[mark] = refused
		case err == nil:
			a.fates[mark] = acknowledged
		case !a.Done || txlock.Retryable(err):
			a.fates[mark] = refused
		default:
			a.fates[mark] = unknown
		}
	}
}

// names are those of times, numbers, keys and owners, which an error may end by.
var names = regexp.MustCompile(`"[^"]*"|\([^)]*\)|\d[-\w:.]*`)

// note counts an error, by its number or its end. The caller has the mutex.
func (l *Ledger) note(err error) {
	var server *mysql.MySQLError
	switch {
	case err == nil:
	case errors.As(err, &server):
		l.errors[fmt.Sprintf("Error %d", server.Number)]++
	default:
		text := names.ReplaceAllString(err.Error(), "...")
		l.errors[text[strings.LastIndex(text, ": ")+1:]]++
	}
}

// Errors counts what calls have returned, by the number of the server's error or by the end
// of its text.
func (l *Ledger) Errors() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.errors)
}

// Failed notes the error of a call without a transaction.
func (l *Ledger) Failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(err)
}

// Check compares what clients know with the data of a node: every acknowledged
// transaction is there, no refused one is, and the number is theirs, which each of
// them has raised by one.
func (l *Ledger) Check(t *testing.T, db *sql.DB) {
	t.Helper()
	rows, err := db.Query("SELECT id, inside FROM marks WHERE kind = ?", l.Kind)
	check(t, err)
	defer func() { _ = rows.Close() }()
	there := make(map[string]bool)
	for rows.Next() {
		var mark string
		var inside bool
		check(t, rows.Scan(&mark, &inside))
		if !inside {
			t.Errorf("%s: a transaction that the server had ended has executed a statement", l.Kind)
		}
		there[mark] = true
	}
	check(t, rows.Err())
	var n int
	check(t, db.QueryRow("SELECT n FROM numbers WHERE kind = ?", l.Kind).Scan(&n))
	l.mu.Lock()
	defer l.mu.Unlock()
	count := make(map[fate]int)
	unknownThere := 0
	for mark, fate := range l.fates {
		count[fate]++
		switch {
		case fate == acknowledged && !there[mark]:
			t.Errorf("%s: a transaction whose COMMIT was acknowledged is lost", l.Kind)
		case fate == refused && there[mark]:
			t.Errorf("%s: a transaction that was reported to be rolled back is in the data", l.Kind)
		case fate == unknown && there[mark]:
			unknownThere++
		}
	}
	t.Logf("%s: %d committed, %d rolled back, %d unknown, of which %d are there; number %d",
		l.Kind, count[acknowledged], count[refused], count[unknown], unknownThere, n)
	if n != len(there) {
		t.Errorf("%s: %d updates of %d were lost", l.Kind, len(there)-n, len(there))
	}
	if count[acknowledged] == 0 {
		t.Errorf("%s: nothing was committed", l.Kind)
	}
}

// Increment reads the number and writes one more: what two do at once is lost.
func (a *Attempts) Increment(ctx context.Context, tx *sql.Tx) error {
	return a.Mark(ctx, tx, func() error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT n FROM numbers WHERE kind = ?", a.Kind).Scan(&n); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE numbers SET n = ? WHERE kind = ?", n+1, a.Kind)
		return err
	})
}

// Locked increments the number under a lock.
func (l *Ledger) Locked(ctx context.Context, db *sql.DB) {
	a := l.Begin()
	a.Settle(locksqlc.Run(ctx, db, []txlock.Key{txlock.Named(l.Kind)}, func(tx *sql.Tx) error {
		return a.Increment(ctx, tx)
	}))
}

// Optimistic increments it without a lock.
func (l *Ledger) Optimistic(ctx context.Context, db *sql.DB) {
	a := l.Begin()
	a.Settle(locksqlc.Optimistic(ctx, db, txlock.Named(l.Kind), func(tx *sql.Tx) error {
		return a.Increment(ctx, tx)
	}))
}

// Form reads the version and the number, thinks, and saves.
func (l *Ledger) Form(ctx context.Context, db *sql.DB) {
	key := txlock.Named(l.Kind)
	version, err := txlock.ReadVersion(ctx, db, key)
	var n int
	if err == nil {
		err = db.QueryRowContext(ctx, "SELECT n FROM numbers WHERE kind = ?", l.Kind).Scan(&n)
	}
	if err != nil {
		l.Failed(err)
		return
	}
	a := l.Begin()
	a.Settle(locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		return a.Mark(ctx, tx, func() error {
			scope, err := locksqlc.Join(ctx, tx)
			if err != nil {
				return err
			}
			if err := scope.CompareAndBump(ctx, key, version); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "UPDATE numbers SET n = ? WHERE kind = ?", n+1, l.Kind)
			return err
		})
	}))
}
