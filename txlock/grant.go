package txlock

// Grant is a lock that was given. It holds until the transaction ends.
type Grant struct {
	key    Key
	token  uint64
	shared bool
}

// Key returns what is locked.
func (g Grant) Key() Key { return g.key }

// Token returns the fencing token: a number that increases with every exclusive grant of the
// key, over rollbacks too, so that a system outside of the database can refuse a stale holder
// with a lower one. For a shared grant it is the token of the last exclusive one, 0 where there
// was none.
func (g Grant) Token() uint64 { return g.token }

// Shared reports whether the lock was taken by RLock or TryRLock.
func (g Grant) Shared() bool { return g.shared }
