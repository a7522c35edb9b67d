package locktest

import "database/sql"

// DB returns the pool of the leases, the same each time. lease.NewManager(memory.DB())
// returns a manager whose leases are in this Memory, and so does code of a program that is
// given the pool. quorum.New takes managers on the pools of several memories.
//
// The pool takes no SQL: every statement returns an error, schema.Install and txlock.Join
// too. But it has transactions, for lease.Lease.Guard and lease.Manager.AcquireTx: what
// they lock stays locked until Commit or Rollback. In a transaction of another pool, of a
// mock for example, they act at once: Guard returns whether the lease is held, and keeps
// nobody out until the end.
//
// Close the managers and the pool at the end of the test, as the program does: they have
// goroutines, and a bubble of testing/synctest doesn't end before these.
func (m *Memory) DB() *sql.DB { return m.leases.Pool() }

// Disconnect makes all that is asked of DB by its managers and transactions fail from now
// on, as if the connection were lost. Leases are not renewed then, and are lost when their
// time is over. It doesn't affect the locks of Begin: see Scope.FailNext.
func (m *Memory) Disconnect() { m.leases.Down(nil) }

// Reconnect ends Disconnect.
func (m *Memory) Reconnect() { m.leases.Up() }
