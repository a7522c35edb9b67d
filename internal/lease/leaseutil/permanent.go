package leaseutil

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// The errors that end a Run of a job or of an election: those that always mean the same, and
// those that mean it if they are the first answer. Later, a server may be about to be exchanged,
// for example.
var (
	always  = []error{txlock.ErrInvalidKey, txlock.ErrInvalidOption, schema.ErrEngine}
	atFirst = []error{txlock.ErrSchema, txlock.ErrReadOnly, txlock.ErrPrivilege, schema.ErrSession}
)

// Permanent reports whether a Run can't go on after an error, because to try again would be
// refused again. A server that has answered once was right for it.
func Permanent(err error, answered bool) bool {
	is := func(target error) bool { return errors.Is(err, target) }
	if slices.ContainsFunc(always, is) || poolClosed(err) {
		return true
	}
	return !answered && (slices.ContainsFunc(atFirst, is) || fault.Is(err, 1045, 1049, 1698)) // ER_ACCESS_DENIED_ERROR, ER_BAD_DB_ERROR, ER_ACCESS_DENIED_NO_PASSWORD_ERROR
}

// poolClosed reports whether the program has closed the pool. database/sql has no name for it.
func poolClosed(err error) bool {
	return err != nil && strings.Contains(err.Error(), "sql: database is closed")
}

// Seldom keeps what a Run logs again and again to one record a minute.
type Seldom struct {
	mu   sync.Mutex
	last map[string]said
}

type said struct {
	text string
	at   time.Time
}

// Passes reports whether to log a text about a key: it is another one than the last, or a
// minute has passed.
func (s *Seldom) Passes(key, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, has := s.last[key]; has && last.text == text && time.Since(last.at) < time.Minute {
		return false
	}
	if s.last == nil {
		s.last = make(map[string]said)
	}
	s.last[key] = said{text, time.Now()}
	return true
}
