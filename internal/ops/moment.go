package ops

import (
	"context"
	"slices"
	"strings"
)

// A look reads the server's list of locks first, and the rows of lockstep afterwards: between the
// two a key may change hands. settle makes one moment of both: what a later read contradicts goes.

// settle removes the holders and waiters that the rows contradict. Who has a row locked exclusively
// and has written nothing in it, by SELECT ... FOR UPDATE for example, is asked for again.
func (l *look) settle(ctx context.Context, known map[Row]grant) error {
	var doubtful []rowLock
	l.seen = slices.DeleteFunc(l.seen, func(s rowLock) bool {
		g, granted := known[s.Row]
		last, changing := l.changing[s.Row]
		switch {
		case s.Kind != Named && s.Kind != Hashed || s.unsure:
			return false
		case s.waiting:
			return granted && g.session == s.session
		case granted && g.session == s.session:
			return false
		case granted, s.mode == Exclusive && changing:
			l.changing[s.Row] = last
			return true
		case s.mode == Exclusive:
			doubtful = append(doubtful, s)
		}
		return false
	})
	still, err := l.stillListed(ctx, doubtful)
	if err != nil {
		return err
	}
	l.seen = slices.DeleteFunc(l.seen, func(s rowLock) bool {
		gone := slices.Contains(doubtful, s) && !still[s.id+" "+s.trx]
		if gone {
			l.changing[s.Row] = grant{}
		}
		return gone
	})
	return nil
}

// stillListed returns which of the locks the server lists again, by their identifiers and
// transactions.
func (l *look) stillListed(ctx context.Context, locks []rowLock) (map[string]bool, error) {
	still := make(map[string]bool)
	if len(locks) == 0 {
		return still, nil
	}
	query := "SELECT CONCAT(engine_lock_id, ' ', engine_transaction_id) FROM performance_schema.data_locks WHERE lock_status = 'GRANTED' AND engine_lock_id IN (?"
	if l.maria {
		if err := l.transactions(ctx); err != nil { // which makes the list of locks anew, too
			return nil, err
		}
		query = "SELECT CONCAT(lock_id, ' ', lock_trx_id) FROM information_schema.INNODB_LOCKS WHERE lock_id IN (?"
	}
	for part := range slices.Chunk(locks, chunk) {
		ids := make([]any, len(part))
		for i, s := range part {
			ids[i] = s.id
		}
		found, err := every(ctx, l.db, query+strings.Repeat(",?", len(part)-1)+")", ids, func(id *string) []any { return []any{id} })
		if err != nil {
			return nil, err
		}
		for _, id := range found {
			still[id] = true
		}
	}
	return still, nil
}

// numbered tells whether a transaction has a number of its own. One that has written nothing has 0
// on MariaDB, and on MySQL a number above 2^48, which the next one of its session has, too.
func numbered(id string) bool { return id != "0" && len(id) < len("281474976710656") }
