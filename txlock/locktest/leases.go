package locktest

import "database/sql"

// DB returns the pool of the leases, one for each Memory: lease.NewManager(memory.DB())
// makes a lease.Manager whose leases are in this memory, and so does the code of a program
// that is given the pool. quorum.New takes managers on the pools of several memories.
//
// The pool takes no SQL: every statement returns an error, and so do schema.Install and
// the locks of a transaction, for which there is Begin. It begins transactions, so that
// lease.Lease.Guard and lease.Manager.AcquireTx can join them. What is guarded in one stays
// locked until its Commit or Rollback. In a transaction of any other pool, a mock for
// example, Guard compares what the lease is worth at that moment, and keeps nobody out.
//
// In a test under testing/synctest, close the managers and the pool before the test ends,
// since each has goroutines.
func (m *Memory) DB() *sql.DB { return m.leases.Pool() }

// Disconnect lets every call of the managers and transactions of DB fail from now on, as
// that of a connection that is lost. Leases are not renewed then, and are lost when their
// time is over. The locks of Begin are no concern of it: see Scope.FailNext.
func (m *Memory) Disconnect() { m.leases.Down(nil) }

// Reconnect ends Disconnect.
func (m *Memory) Reconnect() { m.leases.Up() }
