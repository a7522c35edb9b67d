package differential_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// memory is the stand-in. Its actors live in a bubble of testing/synctest, where it is
// known for certain who waits, and limits cost no time. The driver lives outside, as the
// server does, and sends it functions.
type memory struct {
	*locktest.Memory
	bubble chan func()
	scopes []*locktest.Scope // of the actors

	mu      sync.Mutex
	answers []*answer // of those who have returned
	// victim is told by the server.
	victim func(actors []int) int
}

func newMemory(engine testdb.Engine, bubble chan func(), victim func(actors []int) int) *memory {
	m := &memory{
		bubble: bubble, victim: victim,
		scopes: make([]*locktest.Scope, maxActors), answers: make([]*answer, maxActors),
	}
	options := []locktest.MemoryOption{locktest.Victim(m.choose)}
	if engine == testdb.MySQL {
		options = append(options, locktest.OnMySQL)
	}
	m.do(func() { m.Memory = locktest.NewMemory(options...) })
	return m
}

// do does something in the bubble, and returns when it is done.
func (m *memory) do(f func()) {
	done := make(chan struct{})
	m.bubble <- func() { defer close(done); f() }
	<-done
}

// choose hands the server's choice on.
func (m *memory) choose(circle []*locktest.Scope) *locktest.Scope {
	actors := make([]int, len(circle))
	for i, scope := range circle {
		actors[i] = slices.Index(m.scopes, scope)
	}
	if actor := m.victim(actors); actor >= 0 {
		return m.scopes[actor]
	}
	return nil
}

// start begins a step. When it returns, all that could return has.
func (m *memory) start(a *actor, s step, call func(*actor, step) answer) {
	m.do(func() {
		go func() {
			answer := call(a, s)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.answers[a.number] = &answer
		}()
		synctest.Wait()
		for s.limited() && m.answer(a.number) == nil {
			time.Sleep(short)
			synctest.Wait()
		}
	})
}

// answer returns what the actor's call has returned, nil where it waits.
func (m *memory) answer(actor int) *answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.answers[actor]
}

func (m *memory) begin(actor int, options *sql.TxOptions) (transaction, error) {
	scope, err := m.BeginTx(options)
	m.scopes[actor] = scope
	return memoryTx{scope}, err
}

func (m *memory) readVersion(ctx context.Context, key txlock.Key) (uint64, error) {
	return m.ReadVersion(ctx, key)
}

func (m *memory) holders(ctx context.Context, keys ...txlock.Key) ([]txlock.Holder, error) {
	return m.Holders(ctx, keys...)
}

// memoryTx is a transaction of the stand-in.
type memoryTx struct{ *locktest.Scope }

func (t memoryTx) Snapshot() error {
	if err := t.Verify(context.Background()); errors.Is(err, sql.ErrTxDone) {
		return sql.ErrTxDone
	} else if err != nil {
		return err
	}
	t.Scope.Snapshot()
	return nil
}

func (t memoryTx) atMost(d time.Duration) locks { return t.WaitAtMost(d) }

// end ends the transactions of the actors: those that wait after those that don't.
func (m *memory) end(actors []*actor) {
	m.do(func() {
		for _, a := range actors {
			if a.tx != nil {
				go func() { _ = a.tx.Rollback() }()
			}
		}
		synctest.Wait()
	})
}
