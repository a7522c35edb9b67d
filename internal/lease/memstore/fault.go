package memstore

import (
	"context"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
)

// Fault makes a call of a store instead of the store, by call, which it may do at once,
// later or not at all. Its error is that of the call, whose answer is lost then.
//
// The name is that of the method of store.Store, store.Session or Tx, or Begin or Ping of
// the pool, and the row the one that it is about: the first of RenewMany, slot 0 for what is
// about a key, and none for what is about neither. What Queued and Wait send are calls as
// well.
type Fault func(ctx context.Context, op string, at store.Row, call func() error) error

// SetFault sets what goes wrong with the calls of this store from now on, nil for nothing.
func (s *Store) SetFault(f Fault) {
	s.server.Mu.Lock()
	defer s.server.Mu.Unlock()
	s.fault = f
}

// Down lets every call fail without an effect, from now on until Up, with an error that is
// nil for that of a lost connection. Rollback works on, as the end of the connection
// would, and calls that wait in a queue wait on.
func (s *Store) Down(err error) {
	if err == nil {
		err = mysql.ErrInvalidConn
	}
	s.SetFault(func(context.Context, string, store.Row, func() error) error { return err })
}

// Up ends Down, and what SetFault has set.
func (s *Store) Up() { s.SetFault(nil) }

// perform makes a call, unless its context has ended.
func (s *Store) perform(ctx context.Context, op string, at store.Row, call func() error) error {
	s.server.Mu.Lock()
	fault := s.fault
	s.server.Mu.Unlock()
	sent := func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return call()
	}
	if fault == nil {
		return sent()
	}
	return fault(ctx, op, at, sent)
}
