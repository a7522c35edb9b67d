package locktest_test

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// memory is a Kit. Its actors live in a bubble of testing/synctest, where it is
// known for certain who waits, and limits cost no time. The driver lives outside, as the
// server does, and sends it functions.
type memory struct {
	*locktest.Kit
	t      *testing.T
	bubble chan func()

	mu      sync.Mutex
	answers []*answer // of those who have returned
	pools   []*sql.DB // of the actors
	close   func()
}

func newMemory(t *testing.T, bubble chan func(), victim func(actors []int) int) *memory {
	m := &memory{t: t, bubble: bubble, answers: make([]*answer, maxActors)}
	m.do(func() {
		fails, program := &said{TB: t}, sql.OpenDB(&numbers{all: map[string]int64{"nothing": 0}})
		m.Kit = locktest.Open(fails, program)
		for range maxActors { // whose sessions are 1, 2 and 3
			pool := sql.OpenDB(locksqlc.Connector(m.Connector()))
			pool.SetMaxOpenConns(1)
			if err := pool.Ping(); err != nil {
				t.Error(err)
			}
			m.pools = append(m.pools, pool)
		}
		m.Choose(func(sessions []uint64) int {
			actors := make([]int, len(sessions))
			for i, s := range sessions {
				actors[i] = int(s) - 1
			}
			return slices.Index(actors, victim(actors))
		})
		m.close = func() {
			for _, pool := range m.pools {
				must(t, pool.Close())
			}
			fails.end()
			must(t, program.Close())
		}
	})
	return m
}

// do does something in the bubble, and returns when it is done.
func (m *memory) do(f func()) {
	done := make(chan struct{})
	m.bubble <- func() { defer close(done); f() }
	<-done
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
	tx, err := m.pools[actor].BeginTx(context.Background(), options)
	if err != nil {
		return nil, err
	}
	scope, err := txlock.Join(context.Background(), tx)
	return serverTx{scope, tx, &server{table: "nothing"}}, err
}

func (m *memory) readVersion(ctx context.Context, key txlock.Key) (uint64, error) {
	return txlock.ReadVersion(ctx, m.DB(), key)
}

func (m *memory) holders(ctx context.Context, keys ...txlock.Key) ([]txlock.Holder, error) {
	return txlock.Holders(ctx, m.DB(), keys...)
}

// end ends the transactions of the actors: those that wait after those that don't.
func (m *memory) end(actors []*actor) {
	m.do(func() {
		for _, a := range actors {
			if a.tx != nil {
				go func() { _ = a.tx.Rollback() }()
			}
		}
		synctest.Wait()
		m.close()
	})
}
