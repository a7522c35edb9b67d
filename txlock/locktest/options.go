package locktest

// MemoryOption is an option of NewMemory.
type MemoryOption func(*Memory)

// OnMySQL makes a Memory do as MySQL does. The default is MariaDB. They differ in this:
//
//   - ErrStaleSnapshot ends the transaction on MariaDB. On MySQL it goes on, and the row
//     stays locked. MariaDB returns it before the wait where the row is locked and not
//     written, and takes a row that was made meanwhile for newer, though it has no version.
//   - TryLock and TryRLock of a key that was never committed wait up to a second on MySQL,
//     WaitAtMost for whole seconds, and the try makes the snapshot.
//   - At REPEATABLE READ the lock of a row that was made after a savepoint stays on MySQL when
//     that is rolled back, on MariaDB only if somebody has asked for it meanwhile.
//   - LockAll with a limit is one statement on MariaDB. On MySQL each key has its own, and
//     the versions of those that it got rise by Commit, though it has failed.
func OnMySQL(m *Memory) { m.mysql = true }

// Victim says who is rolled back of the transactions that wait for each other, so that a
// test can have any of them meet a deadlock. Nil leaves the choice to Memory. The function
// must not use the Memory, nor the scopes but to compare them with those of Begin.
func Victim(choose func(circle []*Scope) *Scope) MemoryOption {
	return func(m *Memory) { m.victim = choose }
}
