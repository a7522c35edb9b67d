package bridge

import (
	"context"
	"time"
)

// Once is what package txlock does for the others that ask Scope.Once: Scope is
// *txlock.Scope, Key is txlock.Key, and Option is txlock.OnceOption.
type Once[Scope, Key, Option any] struct {
	// Answer stores the result of a key in the transaction that is the first of it.
	Answer func(ctx context.Context, scope Scope, key Key, result []byte) error

	// Result reads it in a transaction that has asked for the key and isn't the first. It
	// is nil if the first has stored none.
	Result func(ctx context.Context, scope Scope, key Key) ([]byte, error)

	// Asked returns what options ask for: for how long the key is kept, and the
	// fingerprint, nil for none.
	Asked func(options []Option) (keep time.Duration, fingerprint []byte, err error)
}

var once any

// SetOnce is called by package txlock.
func SetOnce[Scope, Key, Option any](o Once[Scope, Key, Option]) { once = o }

// OnceOf returns what package txlock has set, to a package that imports it.
func OnceOf[Scope, Key, Option any]() Once[Scope, Key, Option] {
	return once.(Once[Scope, Key, Option])
}
