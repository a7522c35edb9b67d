package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

const (
	mostAlone     = 16                     // so many calls send their own statement at once
	fewestInBatch = 8                      // fewer may cost more than a statement for each
	batchPatience = 100 * time.Millisecond // with a statement that has no answer
)

// Take takes a lease, a reader's place or a permit, a lease together with others if many
// calls meet.
func (s *Store) Take(ctx context.Context, ask store.Ask) (store.Answer, error) {
	if ask.InTurn || ask.Permits > 0 || ask.Slot != store.LeaseSlot || s.clock.engine().OneByOne {
		return s.session.Take(ctx, ask)
	}
	token, err := s.takes.join(ctx, rawsql.Wanted{
		Name: ask.Key, Slot: ask.Slot, Hold: ask.Hold, Owner: ask.Owner, Label: ask.Label,
		TTLUs: ask.TTL.Microseconds(), NotAfter: s.clock.MicrosAt(ask.NotAfter),
	})
	if token > 0 || err != nil {
		return store.Answer{Reply: store.Done, Token: uint64(token), Slot: ask.Slot}, err
	}
	defer s.takes.leave()
	return s.session.Take(ctx, ask)
}

// Release removes a hold, together with others if many calls meet.
func (s *Store) Release(ctx context.Context, at store.Row, hold string) (store.Reply, error) {
	if s.clock.engine().OneByOne {
		return s.session.Release(ctx, at, hold)
	}
	token, err := s.releases.join(ctx, rawsql.Wanted{Name: at.Key, Slot: at.Slot, Hold: hold})
	if token > 0 || err != nil {
		return store.Done, err
	}
	defer s.releases.leave()
	return s.session.Release(ctx, at, hold)
}

// many returns what sends a statement for several leases on the pool.
func (s *Store) many(text func(all []rawsql.Wanted, near int64) string) sendMany {
	return func(ctx context.Context, all []rawsql.Wanted) (done uint32, clock int64, err error) {
		near := s.clock.MicrosAt(now())
		result, err := s.pool.ExecContext(ctx, text(all, near))
		if err != nil {
			return 0, 0, err
		}
		id, err := result.LastInsertId()
		if err != nil {
			return 0, 0, err
		}
		affected, err := result.RowsAffected()
		if err != nil {
			return 0, 0, err
		}
		done, clock, ok := rawsql.Reply(id, affected, near, len(all))
		if !ok {
			return 0, 0, unknownReply("a statement for several leases", fmt.Sprintf("the insert id %d, and %d changed rows", id, affected))
		}
		return done, clock, nil
	}
}

// sendMany sends one statement for several rows. It returns a bit for each row that was
// written, and the server's clock.
type sendMany func(ctx context.Context, all []rawsql.Wanted) (done uint32, clock int64, err error)

// batcher sends calls of one kind by one statement where many meet. Up to mostAlone send
// their own at once. The next ones wait until one of those is answered, and are sent
// together then; whoever comes meanwhile waits for the next such statement. Afterwards, one
// that sends its own is enough to wait for, until too few wait for it. A call that the
// statement has no answer for sends its own.
type batcher struct {
	send sendMany

	mu      sync.Mutex
	alone   int  // calls that send their own statement
	batches int  // statements for several that are on their way
	crowded bool // enough for a statement have waited last
	queue   []*queued
	sending sync.WaitGroup
}

// queued is a call that waits to be sent with others, or for the answer.
type queued struct {
	rawsql.Wanted
	answer chan answer // of capacity 1
	batch  *batch      // nil in the queue
	gone   bool        // its context has ended
}

// answer is the server's clock if the row was written, and else that the call sends its own.
type answer struct {
	token int64
	err   error
}

// batch is a statement for several calls. It ends when all of them are gone.
type batch struct {
	calls []*queued
	left  int
	ctx   context.Context //nolint:containedctx // which no call has
	end   context.CancelFunc
}

// join waits until the call was sent with others, and returns the server's clock if its row
// was written. If it returns 0 without an error, the caller sends its own statement and then
// calls leave. An error may mean that the row was written, as that of its own would.
func (b *batcher) join(ctx context.Context, w rawsql.Wanted) (token int64, err error) {
	b.mu.Lock()
	most := mostAlone
	if b.crowded {
		most = 1
	}
	if b.batches == 0 && b.alone < most {
		b.alone++
		b.mu.Unlock()
		return 0, nil
	}
	c := &queued{Wanted: w, answer: make(chan answer, 1)}
	b.queue = append(b.queue, c)
	if len(b.queue) >= rawsql.MaxBatch {
		b.start()
	}
	b.mu.Unlock()
	overdue := time.NewTimer(batchPatience)
	defer overdue.Stop()
	for {
		select {
		case a := <-c.answer:
			return a.token, a.err
		case <-ctx.Done():
			a := b.quit(ctx, c)
			return a.token, a.err
		case <-overdue.C: // that before it may have no answer for long
			b.mu.Lock()
			if c.batch == nil {
				b.crowded = b.start()
			}
			b.mu.Unlock()
		}
	}
}

// leave ends a call that has sent its own statement.
func (b *batcher) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alone--
	if b.batches == 0 {
		b.crowded = b.start()
	}
}

// quit ends a call whose context has ended, unless there is an answer now.
func (b *batcher) quit(ctx context.Context, c *queued) answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case a := <-c.answer:
		return a
	default:
	}
	c.gone = true
	if c.batch == nil {
		b.queue = slices.DeleteFunc(b.queue, func(other *queued) bool { return other == c })
	} else if c.batch.left--; c.batch.left == 0 {
		c.batch.end()
	}
	return answer{err: ctx.Err()}
}

// start sends those who wait together, and reports whether there are enough for that. The
// caller holds batcher.mu.
func (b *batcher) start() bool {
	f := b.next(fewestInBatch)
	if f == nil {
		return false
	}
	b.batches++
	b.sending.Go(func() {
		for f != nil {
			done, clock, err := b.send(f.ctx, f.rows())
			f.end()
			b.mu.Lock()
			b.settle(f, done, clock, err)
			if f = b.next(1); f == nil {
				b.batches--
			}
			b.mu.Unlock()
		}
	})
	return true
}

// next takes those from the queue that are sent together. If they are too few, up to alone
// of them are told to send their own, and if two want the same row, the second is. The
// caller holds batcher.mu.
func (b *batcher) next(alone int) *batch {
	n := min(len(b.queue), rawsql.MaxBatch)
	few := n < fewestInBatch
	if few {
		n = min(n, alone)
	}
	f, rows := &batch{}, make(map[store.Row]bool, n)
	for _, c := range b.queue[:n] {
		row := store.Row{Key: c.Name, Slot: c.Slot}
		if few || rows[row] {
			b.sendOwn(c)
			continue
		}
		rows[row], c.batch = true, f
		f.calls = append(f.calls, c)
	}
	b.queue = slices.Delete(b.queue, 0, n)
	if f.left = len(f.calls); f.left == 0 {
		return nil
	}
	f.ctx, f.end = context.WithCancel(context.Background())
	return f
}

// settle hands each call of a batch its answer. The caller holds batcher.mu.
func (b *batcher) settle(f *batch, done uint32, clock int64, err error) {
	unknown := fault.Unknown(err) && !errors.Is(err, mysql.ErrPktTooLarge) // which was not sent
	for i, c := range f.calls {
		switch {
		case c.gone:
		case unknown:
			c.answer <- answer{err: err}
		case done>>i&1 == 1:
			c.answer <- answer{token: clock}
		default:
			b.sendOwn(c)
		}
	}
}

// sendOwn tells a call to send its own statement. The caller holds batcher.mu.
func (b *batcher) sendOwn(c *queued) {
	b.alone++
	c.answer <- answer{}
}

func (f *batch) rows() []rawsql.Wanted {
	all := make([]rawsql.Wanted, len(f.calls))
	for i, c := range f.calls {
		all[i] = c.Wanted
	}
	return all
}
