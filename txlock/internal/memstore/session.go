package memstore

import (
	"context"

	"github.com/dca00107/lockstep/txlock/internal/store"
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
		db.mu.Lock()
		defer db.mu.Unlock()
		t := x.tx
		if t == nil {
			t = db.begin(false)
		}
		if t.over != nil {
			return t.over
		}
		answer, err = statement(t)
		switch {
		case x.tx != nil:
		case err == nil:
			err = t.commit()
		default:
			t.end(err)
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

// change writes one row, or is Absent.
func (x session) change(ctx context.Context, op string, at store.Row, write func(r *row, now int64) store.Reply) (store.Reply, error) {
	return do(ctx, x, op, at, func(t *Tx) (store.Reply, error) {
		r, ok := t.take(at)
		if !ok {
			return store.Absent, nil
		}
		reply := write(&r, t.db.now())
		t.written[at] = r
		return reply, nil
	})
}

// gate is the row that says what a key is used for.
func gate(key string) store.Row { return store.Row{Key: key, Slot: store.LeaseSlot} }

func (x session) Renew(ctx context.Context, c store.Claim) (store.Reply, error) {
	return x.change(ctx, "Renew", c.Row, func(r *row, now int64) store.Reply {
		if !r.claimed(c, now) {
			return store.Refused
		}
		r.expires = now + r.ttl
		if r.asked > c.Told {
			return store.Questioned
		}
		return store.Done
	})
}

func (x session) RenewMany(ctx context.Context, claims []store.Claim) (found map[store.Row]store.Standing, questions []store.Question, err error) {
	if len(claims) == 0 {
		return nil, nil, nil
	}
	found, err = do(ctx, x, "RenewMany", claims[0].Row, func(t *Tx) (map[store.Row]store.Standing, error) {
		found := make(map[store.Row]store.Standing, len(claims))
		now, seen := t.db.now(), t.latest()
		for _, c := range claims {
			r := seen[c.Row]
			switch {
			case !r.claimed(c, now):
			case t.lock(c.Row):
				r.expires = now + r.ttl
				t.written[c.Row] = r
				found[c.Row] = store.Renewed
				questions = append(questions, r.question(c)...)
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
	reply, err := x.change(ctx, "Raise", c.Row, func(r *row, now int64) store.Reply {
		if !r.has(c, now) {
			return store.Refused
		}
		r.token = max(r.token, c.Token)
		token = r.token
		return store.Done
	})
	return store.Answer{Reply: reply, Token: token, Slot: c.Slot}, err
}

func (x session) Guard(ctx context.Context, c store.Claim) (store.Reply, error) {
	return do(ctx, x, "Guard", c.Row, func(t *Tx) (store.Reply, error) {
		if err := t.await(ctx, c.Row, lockWait); err != nil {
			return store.Absent, err
		}
		r, _ := t.current(c.Row)
		if !r.claimed(c, t.db.now()) {
			return store.Refused, nil
		}
		r.guards++
		r.session = t.id
		t.written[c.Row] = r
		return store.Done, nil
	})
}

func (x session) Force(ctx context.Context, at store.Row) (store.Reply, error) {
	return x.change(ctx, "Force", at, func(r *row, now int64) store.Reply {
		if !r.held(now) {
			return store.Refused
		}
		r.holds, r.expires, r.token = "", now, r.token+1
		return store.Done
	})
}

func (x session) Reap(ctx context.Context, key string) error {
	return exec(ctx, x, "Reap", gate(key), func(t *Tx) error {
		now, rows := t.db.now(), t.latest()
		for _, at := range places(rows, key) {
			if r := rows[at]; r.holds != "" && r.expires <= now && t.lock(at) {
				r.holds = ""
				t.written[at] = r
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
		if _, exists := t.current(at); !exists {
			t.written[at] = free
		}
		return nil
	})
}

func (x session) Use(ctx context.Context, key string, use store.Use) (used store.Use, err error) {
	reply, err := x.change(ctx, "Use", gate(key), func(r *row, now int64) store.Reply {
		if r.use == store.Exclusive && (use > store.Exclusive || !r.held(now)) {
			r.use = use
		}
		used = r.use
		return store.Done
	})
	if err == nil && reply == store.Absent {
		err = store.ErrLocked
	}
	return used, err
}

func (x session) Resize(ctx context.Context, key string, permits int) (store.Reply, error) {
	return x.change(ctx, "Resize", gate(key), func(r *row, _ int64) store.Reply {
		if r.use >= store.Exclusive {
			return store.Refused
		}
		r.use = store.Use(-permits)
		return store.Done
	})
}
