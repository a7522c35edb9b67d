package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestSuite runs the suite of the real locks on the stand-in.
func TestSuite(t *testing.T) {
	locksuite.RunInMemory(t, func(testing.TB) locksuite.Memory {
		return &memory{Memory: locktest.NewMemory(), numbers: make(map[string]int64)}
	})
}

// memory is a Memory with numbers beside the locks.
type memory struct {
	*locktest.Memory
	mu      sync.Mutex
	numbers map[string]int64
}

func (m *memory) Numbers() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := fmt.Sprintf("numbers%d", len(m.numbers))
	m.numbers[name] = 0
	return name
}

func (m *memory) Begin() (locksuite.Session, locksuite.Locks) {
	s := session{Scope: m.Memory.Begin(), memory: m, written: make(map[string]int64)}
	return s, locks{s.Scope}
}

func (m *memory) AwaitWaiting(tb testing.TB, s locksuite.Session) {
	tb.Helper()
	if err := s.(session).AwaitWaiting(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// locks is the stand-in as what the suite knows.
type locks struct{ *locktest.Scope }

func (l locks) WaitAtMost(d time.Duration) locksuite.Locks { return locks{l.Scope.WaitAtMost(d)} }

// session is a transaction, with what it has written.
type session struct {
	*locktest.Scope
	memory  *memory
	written map[string]int64
}

var errNoServer = errors.New("there is no server")

func (s session) Join(context.Context, ...txlock.JoinOption) (*txlock.Scope, error) {
	return nil, errNoServer
}
func (s session) Savepoint(_ context.Context, name string) error {
	return s.Scope.Savepoint(name)
}
func (s session) RollbackTo(_ context.Context, name string) error {
	return s.Scope.RollbackTo(name)
}

// Exec sets a number. Any other statement changes nothing.
func (s session) Exec(ctx context.Context, query string, _ ...any) error {
	if err := s.Verify(ctx); err != nil {
		return err
	}
	var table string
	var n int64
	if _, err := fmt.Sscanf(query, "UPDATE %s SET n = %d", &table, &n); err == nil {
		s.written[table] = n
	}
	return nil
}

// Int reads the number of the table that the query ends with.
func (s session) Int(ctx context.Context, query string, _ ...any) (int64, error) {
	if err := s.Verify(ctx); err != nil {
		return 0, err
	}
	s.Snapshot()
	table := query[strings.LastIndex(query, " ")+1:]
	if n, ok := s.written[table]; ok {
		return n, nil
	}
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	n, ok := s.memory.numbers[table]
	if !ok {
		return 0, fmt.Errorf("no table %q", table)
	}
	return n, nil
}

// Commit keeps what was written before the locks are free.
func (s session) Commit() error {
	if s.Verify(context.Background()) == nil {
		s.memory.mu.Lock()
		for table, n := range s.written {
			s.memory.numbers[table] = n
		}
		s.memory.mu.Unlock()
	}
	return s.Scope.Commit()
}
