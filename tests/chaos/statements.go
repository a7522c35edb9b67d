package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// A careless statement is sent in the middle of a locked transaction, between the writes
// of two records. It is made by a grammar: a core, what it does, in one or two layers, how
// it is written. What may be the victim of a deadlock without an error, what ends the
// transaction, and what begins another, must not let a write through without its lock.

// The cores, by what they do to a transaction.
const (
	coreHarmless = "statement"            // it goes on
	coreLocks    = "statement that locks" // it goes on, unless this becomes the victim of a deadlock
	coreEnds     = "statement that ends"  // it is over, committed or rolled back
)

var cores = map[string][]string{
	coreHarmless: {"SET @a = 1", "DO 1", "CALL chaos_nothing()", "SELECT value FROM spots WHERE name = 'x'",
		"SAVEPOINT inner_one", "XA RECOVER", "XA START 'chaos'", "XA ROLLBACK 'chaos'", "ROLLBACK TO SAVEPOINT never_made"},
	coreLocks: {"DO (SELECT value FROM spots WHERE name = '%s' FOR UPDATE)", "SELECT value FROM spots WHERE name = '%s' FOR UPDATE",
		"UPDATE spots SET value = value + 1 WHERE name = '%s'", "CALL chaos_touch('%s')", "CALL chaos_swallow('%s')", "DO chaos_function('%s')", "DO (SELECT COUNT(*) FROM spots)"}, // which locks, too, in a DO
	coreEnds: {"COMMIT", "ROLLBACK", "BEGIN", "START TRANSACTION", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN",
		"CREATE TABLE IF NOT EXISTS ddl (id INT)", "CALL chaos_commit()", "CALL chaos_commit_and_start()", "CALL chaos_rollback_and_start()"},
}

// layer writes a statement in another way: as the texts to send one after the other.
type layer struct {
	only  testdb.Engine // "" for both
	multi bool          // it needs a connection that takes several statements at a time
	last  bool          // nothing goes around it
	write func(text string) []string
}

func around(before, behind string) func(string) []string {
	return func(text string) []string { return []string{before + text + behind} }
}

var layers = []layer{
	{write: around("", "")},
	{write: around("/* a comment */ ", "")},
	{write: around("-- a comment\n", " # another")},
	{write: around(" \t\n", " ;")},
	{write: func(text string) []string { return []string{mixed(text)} }},
	{write: around("/*! ", " */")},
	{write: around("/*!50000 ", "*/")},
	{write: around("/*M! ", " */"), only: testdb.MariaDB},
	{write: around("SET STATEMENT max_statement_time = 30 FOR ", ""), only: testdb.MariaDB},
	{write: around("BEGIN NOT ATOMIC ", "; END"), only: testdb.MariaDB},
	{write: around("BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; ", "; END"), only: testdb.MariaDB},
	{write: around("DO 1; ", ""), multi: true, last: true},
	{write: around("", "; DO 1"), multi: true, last: true},
	{last: true, write: func(text string) []string {
		return []string{"PREPARE careless FROM '" + strings.ReplaceAll(text, "'", "''") + "'", "EXECUTE careless"}
	}},
}

// mixed writes every other letter of the words before the first quote small, but for that
// of MariaDB's executable comments, which would be comments.
func mixed(text string) string {
	words, rest, quoted := strings.Cut(text, "'")
	letters := []byte(words)
	for i := range letters {
		if i%2 == 0 {
			letters[i] = strings.ToLower(words[i : i+1])[0]
		}
	}
	text = strings.ReplaceAll(string(letters), "/*m!", "/*M!")
	if quoted {
		return text + "'" + rest
	}
	return text
}

// phrase is a careless statement, and how it is sent.
type phrase struct {
	kind     string
	texts    []string
	prepared bool
	ignores  bool // its error
}

// phrase makes one for the server of this client, which locks a record if it locks.
func (w *worker) phrase(spot string) phrase {
	p := phrase{kind: []string{coreHarmless, coreLocks, coreLocks, coreEnds}[w.IntN(4)], prepared: w.IntN(4) == 0, ignores: w.IntN(2) == 0}
	if w.Without == "flag" && w.IntN(2) == 0 {
		p.kind = coreEnds // of the others the flag tells the truth
	}
	text := w.one(cores[p.kind])
	if strings.Contains(text, "%s") {
		text = fmt.Sprintf(text, spot)
	}
	p.texts = []string{text}
	for range 1 + w.IntN(2) {
		l := layers[w.IntN(len(layers))]
		if l.only != "" && l.only != w.Engine || l.multi && !w.multi {
			continue
		}
		p.texts = l.write(p.texts[0])
		if l.last {
			break
		}
	}
	return p
}

// send sends it, and reads what comes back to its end.
func (p phrase) send(ctx context.Context, tx *sql.Tx) error {
	for _, text := range p.texts {
		if err := p.sendOne(ctx, tx, text); err != nil {
			return err
		}
	}
	return nil
}

func (p phrase) sendOne(ctx context.Context, tx *sql.Tx, text string) error {
	query := func() (*sql.Rows, error) { return tx.QueryContext(ctx, text) }
	if p.prepared {
		stmt, err := tx.PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		defer func() { _ = stmt.Close() }() // the connection may be gone
		query = func() (*sql.Rows, error) { return stmt.QueryContext(ctx) }
	}
	rows, err := query()
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // Err tells
	for more := true; more; more = rows.NextResultSet() {
		for rows.Next() {
			continue
		}
	}
	return rows.Err()
}

// careless sends a careless statement in a transaction, and takes a lock that it has once
// more, as code does that doesn't know of it, before it writes another record. The two
// writes are two operations, since the statement may be what commits the first: of the
// first nobody knows where it was sent; the second is there if and only if the
// transaction was committed.
func (w *worker) careless() outcome {
	if !w.guarded {
		return w.lock() // a plain pool doesn't promise that
	}
	c := &carelessness{worker: w, order: []string{spots[0], spots[1]}}
	if w.IntN(2) == 0 {
		slices.Reverse(c.order)
	}
	c.phrase = w.phrase(c.order[1])
	c.names = w.some(carelessKeys, 2)[:2]
	first, second := w.begin(c.kind, c.names[0]), w.begin(c.kind+", then", c.names[1])
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	c.one, c.two = op{ID: first.ID, Form: c.texts}, op{ID: second.ID, Form: c.texts}
	run := w.begun(w.pool, keysOf(c.names)...)
	if w.Without == "retry" {
		run = w.obstinate(keysOf(c.names))
	}
	err := run(ctx, func(tx *sql.Tx) error { return c.try(ctx, tx) })
	c.two.Return = w.now()
	c.one.Return = c.two.Return
	c.two.Outcome = outcomeOf(err, c.whole)
	c.one.Outcome = c.two.Outcome
	if c.sent && c.one.Outcome == failed {
		c.one.Outcome = unknown
	}
	if err != nil {
		c.one.Err, c.two.Err = err.Error(), err.Error()
	}
	w.journal.write(c.one)
	w.journal.write(c.two)
	return c.two.Outcome
}

// carelessness is what careless does in a transaction, which may be run several times.
type carelessness struct {
	*worker
	phrase
	order    []string // of the two spots
	names    []string // of the keys and records
	one, two op
	sent     bool // a statement that may commit was sent in one of the tries
	whole    bool // the last try has ended
}

func (c *carelessness) try(ctx context.Context, tx *sql.Tx) error {
	c.one.Tries++
	c.two.Tries++
	try := fmt.Sprint(c.one.Tries)
	before := &transaction{Tx: tx, w: c.worker, id: tryID(c.one.ID, try)}
	then := &transaction{Tx: tx, w: c.worker, id: tryID(c.two.ID, try)}
	c.one.Ended, c.whole = false, false
	defer func() { c.one.Wrote, c.two.Wrote = before.wrote, then.wrote }()
	if err := before.bump(ctx, c.names[0], 0); err != nil {
		return err
	}
	if err := before.touch(ctx, c.order[0]); err != nil {
		return err
	}
	c.sent = c.sent || c.kind == coreEnds
	if err := c.send(ctx, tx); err == nil {
		c.one.Ended = c.kind == coreEnds
	} else if !c.ignores {
		return err
	}
	for _, spot := range []string{c.order[1], c.order[0]} { // where the locks are gone, another deadlock
		if err := before.touch(ctx, spot); err != nil && !c.ignores {
			return err
		}
	}
	scope, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := scope.Lock(ctx, keyOf(c.names[1])); err != nil {
		return err
	}
	err = then.bump(ctx, c.names[1], 0)
	c.whole = err == nil
	return err
}

// outcomeOf is what became of a transaction whose function has ended or not.
func outcomeOf(err error, whole bool) outcome {
	switch {
	case err == nil:
		return succeeded
	case errors.Is(err, txlock.ErrUnknownOutcome):
		return unknown
	case !whole || txlock.Retryable(err) || errors.Is(err, txlock.ErrTxDoomed):
		return failed
	}
	return unknown
}

// obstinate is a runner that begins again whatever has ended in a deadlock, and does not
// ask whether it was committed before.
func (w *worker) obstinate(keys []txlock.Key) runner {
	return func(ctx context.Context, fn func(tx *sql.Tx) error) (err error) {
		for range 10 {
			deadlock := false
			err = locksqlc.Run(ctx, w.pool, keys, func(tx *sql.Tx) error {
				err := fn(tx)
				if deadlock = isDeadlock(err); deadlock {
					return fmt.Errorf("a deadlock, by its text only: %v", err) //nolint:errorlint // Run must not know it
				}
				return err
			}, w.isolation())
			if !deadlock {
				return err
			}
		}
		return err
	}
}

// touch locks a record that no lock is for, so that there are deadlocks.
func (t *transaction) touch(ctx context.Context, spot string) error {
	t.w.think(t.w.TTL / 20)
	return t.QueryRowContext(ctx, "SELECT value FROM spots WHERE name = ? FOR UPDATE", spot).Scan(new(int64))
}
