package memstore

import (
	"context"

	"github.com/dca00107/lockstep/internal/lease/rules"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// session sends statements: in a transaction, or each in one of its own. Those of the
// SQL have the same names there, but for a word.
type session struct {
	store *Store
	tx    *Tx // nil: each in one of its own
}

// do makes one statement, and returns nothing of its answer beside an error.
func do[T any](ctx context.Context, x session, op string, at store.Row, statement func(t *Tx) (T, error)) (answer T, err error) {
	err = x.store.perform(ctx, op, at, func() (err error) {
		db := x.store.server
		db.Mu.Lock()
		defer db.Mu.Unlock()
		t := x.tx
		if t == nil {
			t = db.begin(false)
		}
		if t.Over != nil {
			return t.Over
		}
		answer, err = statement(t)
		switch {
		case x.tx != nil:
		case err == nil:
			err = t.rowTx.Commit()
		default:
			t.End(err)
		}
		return err
	})
	if err != nil {
		answer = *new(T)
	}
	return answer, err
}

// exec is do for a statement with nothing to answer.
func exec(ctx context.Context, x session, op string, at store.Row, statement func(t *Tx) error) error {
	_, err := do(ctx, x, op, at, func(t *Tx) (struct{}, error) { return struct{}{}, statement(t) })
	return err
}

// change writes what a rule makes of a row, or is Absent.
func (x session) change(ctx context.Context, op string, at store.Row, rule func(r rules.Row, now int64) (rules.Row, store.Reply)) (store.Reply, error) {
	return do(ctx, x, op, at, func(t *Tx) (store.Reply, error) {
		r, ok := t.take(at)
		if !ok {
			return store.Absent, nil
		}
		r, reply := rule(r, t.db.now())
		t.Written[at] = r
		return reply, nil
	})
}

// entryRow is the row that says what a key is used for.
func entryRow(key string) store.Row { return store.Row{Key: key, Slot: store.LeaseSlot} }

func (x session) Renew(ctx context.Context, c store.Claim) (store.Reply, error) {
	return x.change(ctx, "Renew", c.Row, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Renew(c, now) })
}

func (x session) RenewMany(ctx context.Context, claims []store.Claim) (found map[store.Row]store.Standing, questions []store.Question, err error) {
	if len(claims) == 0 {
		return nil, nil, nil
	}
	found, err = do(ctx, x, "RenewMany", claims[0].Row, func(t *Tx) (map[store.Row]store.Standing, error) {
		found := make(map[store.Row]store.Standing, len(claims))
		now, seen := t.db.now(), t.latest()
		for _, c := range claims {
			r, reply := seen[c.Row].Renew(c, now)
			switch {
			case reply == store.Refused:
			case t.lock(c.Row):
				t.Written[c.Row] = r
				found[c.Row] = store.Renewed
				if reply == store.Questioned {
					questions = append(questions, question(c, r))
				}
			default:
				found[c.Row] = store.Skipped
			}
		}
		return found, nil
	})
	if err != nil {
		questions = nil
	}
	return found, questions, err
}

func (x session) Raise(ctx context.Context, c store.Claim) (store.Answer, error) {
	var token uint64
	reply, err := x.change(ctx, "Raise", c.Row, func(r rules.Row, now int64) (rules.Row, store.Reply) {
		r, reply := r.Raise(c, now)
		if reply == store.Done {
			token = r.Token
		}
		return r, reply
	})
	return store.Answer{Reply: reply, Token: token, Slot: c.Slot}, err
}

func (x session) Guard(ctx context.Context, c store.Claim) (store.Reply, error) {
	return do(ctx, x, "Guard", c.Row, func(t *Tx) (store.Reply, error) {
		if err := t.await(ctx, c.Row, lockWait); err != nil {
			return store.Absent, err
		}
		r, _ := t.Current(c.Row)
		if !r.Has(c, t.db.now()) {
			return store.Refused, nil
		}
		r.Guards++
		r.Session = t.Session
		t.Written[c.Row] = r
		return store.Done, nil
	})
}

func (x session) Force(ctx context.Context, at store.Row, only uint64) (store.Reply, error) {
	return x.change(ctx, "Force", at, func(r rules.Row, now int64) (rules.Row, store.Reply) { return r.Force(only, now) })
}

func (x session) Reap(ctx context.Context, key string) error {
	return exec(ctx, x, "Reap", entryRow(key), func(t *Tx) error {
		rows := t.latest()
		for _, at := range places(rows, key) {
			if r, reply := rows[at].Reap(t.db.now()); reply == store.Done && t.lock(at) {
				t.Written[at] = r
			}
		}
		return nil
	})
}

func (x session) Make(ctx context.Context, at store.Row) error {
	return exec(ctx, x, "Make", at, func(t *Tx) error {
		if !t.lock(at) {
			return store.ErrLocked
		}
		if _, exists := t.Current(at); !exists {
			t.Written[at] = rules.New
		}
		return nil
	})
}

func (x session) Use(ctx context.Context, key string, use store.Use) (used store.Use, err error) {
	reply, err := x.change(ctx, "Use", entryRow(key), func(r rules.Row, now int64) (rules.Row, store.Reply) {
		r = r.UseFor(use, now)
		used = r.Use
		return r, store.Done
	})
	if err == nil && reply == store.Absent {
		err = store.ErrLocked
	}
	return used, err
}

func (x session) Resize(ctx context.Context, key string, permits int) (store.Reply, error) {
	return x.change(ctx, "Resize", entryRow(key), func(r rules.Row, _ int64) (rules.Row, store.Reply) { return r.Resize(permits) })
}
