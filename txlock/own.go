package txlock

import (
	"sync"

	"github.com/dca00107/lockstep/internal/whoami"
)

// spot is what a transaction keeps others from: the row of a key, or a key of Once.
type spot struct {
	database string
	record
	once bool
}

func spotOf(s *state, key Key, once bool) spot {
	if once {
		return spot{s.server.Name, record{name: key.name}, true}
	}
	return spot{s.server.Name, key.record(), false}
}

// inProgram are the open transactions of this program by what they hold; of those who share
// a row, the last. It has those whose end is known: of guarded pools, and of Run and the like.
var inProgram = struct {
	mu sync.Mutex
	by map[spot]*state
}{by: make(map[spot]*state)}

// runs is inside.Lock.Runs.
func runs(s *Scope) (ended func()) {
	s.runner = whoami.Goroutine()
	return s.leave
}

// settle notes what the transaction holds.
func (s *state) settle(key Key, once bool) {
	if s.book == nil && s.runner == "" {
		return
	}
	p := spotOf(s, key, once)
	inProgram.mu.Lock()
	defer inProgram.mu.Unlock()
	if s.spots == nil {
		s.spots = s.oneSpot[:0]
	}
	if inProgram.by[p] != s {
		inProgram.by[p], s.spots = s, append(s.spots, p)
	}
}

// leave forgets what the transaction has held.
func (s *state) leave() {
	inProgram.mu.Lock()
	defer inProgram.mu.Unlock()
	for _, p := range s.spots {
		if inProgram.by[p] == s {
			delete(inProgram.by, p)
		}
	}
	s.spots = nil
}

// inTheWay returns another open transaction of this program for which a call for the key
// would wait, or nil.
func (s *state) inTheWay(key Key, once bool) *state {
	p := spotOf(s, key, once)
	inProgram.mu.Lock()
	other := inProgram.by[p]
	inProgram.mu.Unlock()
	if other == nil || other.server.Session == s.server.Session { // another Join of the same transaction
		return nil
	}
	if other.book != nil && other.book.Err() != nil { // the server has rolled it back, and the program not yet
		return nil
	}
	if h, certain := other.holdOf(p.record); !once && (!certain || h.grant.shared && key.shared) {
		return nil
	}
	return other
}

// ownWait refuses a wait that could not end: for a transaction inside of whose function the
// call is made, by the same goroutine.
func (s *state) ownWait(once bool, keys ...Key) error {
	for _, key := range keys {
		other := s.inTheWay(key, once)
		if other != nil && other.runner != "" && other.runner == whoami.Goroutine() {
			return waitForItself{other.holds(key)}
		}
	}
	return nil
}

// waitForItself is an ErrWaitTimeout of which it is no use to try again.
type waitForItself struct{ held *HeldError }

func (w waitForItself) Error() string {
	return w.held.Error() + ": this call is made inside of that transaction and would wait for itself: use its tx, not the pool"
}

func (w waitForItself) Is(target error) bool { return target == ErrWaitTimeout }
func (w waitForItself) Unwrap() error        { return w.held }

// holds says that the transaction holds a key.
func (s *state) holds(key Key) *HeldError {
	return &HeldError{Key: key.unmarked(), Session: s.server.Session, Here: true}
}
