//go:build cluster

package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

// ledger is what clients know of the transactions of one kind. Each writes a mark, so
// that the data tell in the end what has become of it, and whether that was done in a
// transaction.
type ledger struct {
	kind   string
	inside string // see there

	mu     sync.Mutex
	fates  map[string]fate
	errors map[string]int // of single transactions, by their beginnings
}

func newLedger(kind, inside string) *ledger {
	return &ledger{kind: kind, inside: inside, fates: make(map[string]fate), errors: make(map[string]int)}
}

// attempts are the transactions of one call, which may run several.
type attempts struct {
	*ledger
	marks []string
	done  bool // the last one has come to its COMMIT
}

// mark begins a transaction that runs body and leaves a mark.
func (a *attempts) mark(ctx context.Context, tx *sql.Tx, body func() error) error {
	mark := rand.Text()
	a.marks, a.done = append(a.marks, mark), false
	if err := body(); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO marks VALUES (?, ?, "+a.inside+")", mark, a.kind)
	a.done = err == nil
	return err
}

// settle notes what the call has returned. What it has run again was rolled back.
func (a *attempts) settle(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note(err)
	for i, mark := range a.marks {
		switch {
		case i < len(a.marks)-1:
			a.fates[mark] = refused
		case err == nil:
			a.fates[mark] = acknowledged
		case !a.done || txlock.Retryable(err):
			a.fates[mark] = refused
		default:
			a.fates[mark] = unknown
		}
	}
}

// note counts an error, by its number or its end. The caller has the mutex.
func (l *ledger) note(err error) {
	var server *mysql.MySQLError
	switch {
	case err == nil:
	case errors.As(err, &server):
		l.errors[fmt.Sprintf("Error %d", server.Number)]++
	default:
		text := err.Error()
		l.errors[text[strings.LastIndex(text, ": ")+1:]]++
	}
}

func (l *ledger) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(err)
}

// check compares what clients know with the data of a node: every acknowledged
// transaction is there, no refused one is, and the number is theirs, which each of
// them has raised by one.
func (l *ledger) check(t *testing.T, db *sql.DB) {
	t.Helper()
	rows, err := db.Query("SELECT id, inside FROM marks WHERE kind = ?", l.kind)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	there := make(map[string]bool)
	for rows.Next() {
		var mark string
		var inside bool
		if err := rows.Scan(&mark, &inside); err != nil {
			t.Fatal(err)
		}
		if !inside {
			t.Errorf("%s: a transaction that the server had ended has executed a statement", l.kind)
		}
		there[mark] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := db.QueryRow("SELECT n FROM numbers WHERE kind = ?", l.kind).Scan(&n); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	count := make(map[fate]int)
	unknownThere := 0
	for mark, fate := range l.fates {
		count[fate]++
		switch {
		case fate == acknowledged && !there[mark]:
			t.Errorf("%s: a transaction whose COMMIT was acknowledged is lost", l.kind)
		case fate == refused && there[mark]:
			t.Errorf("%s: a transaction that was reported to be rolled back is in the data", l.kind)
		case fate == unknown && there[mark]:
			unknownThere++
		}
	}
	t.Logf("%s: %d committed, %d rolled back, %d unknown, of which %d are there; number %d",
		l.kind, count[acknowledged], count[refused], count[unknown], unknownThere, n)
	if n != len(there) {
		t.Errorf("%s: %d updates of %d were lost", l.kind, len(there)-n, len(there))
	}
	if count[acknowledged] == 0 {
		t.Errorf("%s: nothing was committed", l.kind)
	}
}

// increment reads the number and writes one more: what two do at once is lost.
func (a *attempts) increment(ctx context.Context, tx *sql.Tx) error {
	return a.mark(ctx, tx, func() error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT n FROM numbers WHERE kind = ?", a.kind).Scan(&n); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE numbers SET n = ? WHERE kind = ?", n+1, a.kind)
		return err
	})
}

// locked increments the number under a lock.
func (l *ledger) locked(ctx context.Context, db *sql.DB) {
	a := &attempts{ledger: l}
	a.settle(locksqlc.Run(ctx, db, []txlock.Key{txlock.Named(l.kind)}, func(tx *sql.Tx) error {
		return a.increment(ctx, tx)
	}))
}

// optimistic increments it without a lock.
func (l *ledger) optimistic(ctx context.Context, db *sql.DB) {
	a := &attempts{ledger: l}
	a.settle(locksqlc.Optimistic(ctx, db, txlock.Named(l.kind), func(tx *sql.Tx) error {
		return a.increment(ctx, tx)
	}))
}

// form reads the version and the number, thinks, and saves.
func (l *ledger) form(ctx context.Context, db *sql.DB) {
	key := txlock.Named(l.kind)
	version, err := txlock.ReadVersion(ctx, db, key)
	var n int
	if err == nil {
		err = db.QueryRowContext(ctx, "SELECT n FROM numbers WHERE kind = ?", l.kind).Scan(&n)
	}
	if err != nil {
		l.failed(err)
		return
	}
	a := &attempts{ledger: l}
	a.settle(locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		return a.mark(ctx, tx, func() error {
			scope, err := locksqlc.Join(ctx, tx)
			if err != nil {
				return err
			}
			if err := scope.CompareAndBump(ctx, key, version); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "UPDATE numbers SET n = ? WHERE kind = ?", n+1, l.kind)
			return err
		})
	}))
}

// hold is for how long a client has believed to hold a lease: from the end of
// Acquire to the beginning of the last look that said so.
type hold struct {
	client     int
	token      uint64
	begun, end time.Duration
}

// history is what the clients of a lease, or of a semaphore, have believed.
type history struct {
	*ledger
	most  int // how many may hold it at once
	began time.Time
	holds []hold
}

func newHistory(kind string, most int) *history {
	return &history{ledger: newLedger(kind, ""), most: most, began: time.Now()}
}

func (h *history) add(one hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds = append(h.holds, one)
}

// check says that no more have held the lease at once than may, and that the tokens of
// one holder at a time rise.
func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.holds, func(a, b hold) int { return cmp.Compare(a.begun, b.begun) })
	byClient := make(map[int]int)
	for i, after := range h.holds {
		byClient[after.client]++
		held := []hold{after}
		for _, before := range h.holds[:i] {
			if after.begun < before.end {
				held = append(held, before)
			}
		}
		if len(held) > h.most {
			t.Errorf("%s: held by %d at once: %v", h.kind, len(held), held)
		}
		if i > 0 && h.most == 1 && after.token <= h.holds[i-1].token {
			t.Errorf("%s: the token falls: %v and %v", h.kind, h.holds[i-1], after)
		}
	}
	t.Logf("%s: %d grants, by client %v, errors %v", h.kind, len(h.holds), byClient, h.errors)
	if len(byClient) < 2 {
		t.Errorf("%s: only %d clients were granted the lease", h.kind, len(byClient))
	}
}

// String is the hold with times that can be read.
func (h hold) String() string {
	return fmt.Sprintf("client %d, token %d, %v to %v", h.client, h.token, h.begun, h.end)
}
