package txlock

// A Grant is a lock that was granted. It is held until the transaction ends.
type Grant struct {
	key    Key
	token  uint64
	shared bool
}

// Key returns the key that is locked.
func (g Grant) Key() Key { return g.key }

// Token returns the fencing token: a number that increases with every exclusive grant of the key,
// even across rollbacks, so that a system outside of the database can refuse a stale holder by its
// lower token. For a shared grant it is the token of the last exclusive one, or 0 if there was
// none.
func (g Grant) Token() uint64 { return g.token }

// Shared reports whether the lock is shared.
func (g Grant) Shared() bool { return g.shared }
