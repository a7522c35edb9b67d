package txlock

import (
	"slices"
	"sync"

	"github.com/dca00107/lockstep/internal/procname"
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

// inProgram are the open transactions of this program by what they hold, alone and shared. It
// has those whose end is known: of guarded pools, and of Run and the like.
var inProgram = struct {
	mu     sync.Mutex
	by     map[spot]*state
	shared map[spot][]*state
}{by: make(map[spot]*state), shared: make(map[spot][]*state)}

// Runs notes that this goroutine runs a function in the transaction, within which a wait for a
// lock of the transaction could not end. The caller calls ended when the transaction has ended.
func (i internals) Runs(s *Scope) (ended func()) {
	i.Last(s, false)
	if s.runner = procname.Goroutine(); s.txState != nil {
		s.txState.Hold() // Commit tells whether it was ended before, also where nothing is locked
	}
	return s.leave
}

// settle notes what the transaction holds.
func (s *state) settle(key Key, shared, once bool) {
	if s.txState == nil && s.runner == 0 {
		return
	}
	p := spotOf(s, key, once)
	inProgram.mu.Lock()
	defer inProgram.mu.Unlock()
	if s.left {
		return
	}
	if s.spots == nil {
		s.spots = s.oneSpot[:0]
	}
	switch {
	case inProgram.by[p] == s, shared && slices.Contains(inProgram.shared[p], s):
		return
	case shared:
		inProgram.shared[p] = append(inProgram.shared[p], s)
	default:
		inProgram.by[p] = s
	}
	s.spots = append(s.spots, p)
}

// leave forgets what the transaction has held, and what may still be noted of it.
func (s *state) leave() {
	inProgram.mu.Lock()
	defer inProgram.mu.Unlock()
	for _, p := range s.spots {
		if inProgram.by[p] == s {
			delete(inProgram.by, p)
		}
		if i := slices.Index(inProgram.shared[p], s); i >= 0 {
			inProgram.shared[p] = slices.Delete(inProgram.shared[p], i, i+1)
		}
		if len(inProgram.shared[p]) == 0 {
			delete(inProgram.shared, p)
		}
	}
	s.spots, s.left = nil, true
}

// inTheWay returns the other open transactions of this program for which a call for the key
// would wait.
func (s *state) inTheWay(key Key, once bool) []*state {
	p := spotOf(s, key, once)
	inProgram.mu.Lock()
	var others []*state
	if alone := inProgram.by[p]; alone != nil {
		others = append(others, alone)
	}
	if !key.shared {
		others = append(others, inProgram.shared[p]...)
	}
	inProgram.mu.Unlock()
	return slices.DeleteFunc(others, func(other *state) bool {
		_, certain := other.holdOf(p.record)
		return other.server.Session == s.server.Session || // another Join of the same transaction
			other.txState != nil && other.txState.Err() != nil || // the server has rolled it back, and the program not yet
			!once && !certain
	})
}

// ownWait refuses a wait that could not end: for a transaction inside of whose function the
// call is made, by the same goroutine. On a plain pool nobody knows whether the server has
// rolled that back.
func (s *state) ownWait(once bool, keys ...Key) error {
	for _, key := range keys {
		for _, other := range s.inTheWay(key, once) {
			if other.txState != nil && other.runner == procname.Goroutine() {
				return waitForItself{other.holds(key)}
			}
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
