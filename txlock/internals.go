package txlock

import "github.com/dca00107/lockstep/internal/bridge"

// Internal is for lockstep's own packages. Programs can't call it, because they can't make its
// argument.
func Internal(bridge.Pass) internals { return internals{} }

// internals is what this package does for lockstep's others and not for programs. Its methods
// stand beside what they belong to.
type internals struct{}

// Asked returns a key without the mark of Shared, and whether it had it.
func (internals) Asked(key Key) (plain Key, shared bool) { return key.unmarked(), key.shared }
