package underlease

import (
	"context"

	"github.com/dca00107/lockstep/txlock"
)

// Owner is who acquires under a context: the holder of a lease, for the key of that
// alone, or a name that the program has given, for all keys. Those of the contexts
// around it are outside of it.
type Owner struct {
	Lease Held   // nil: a name
	Name  string // where there is no lease
	Outer *Owner
}

// Held is a lease that a context carries.
type Held interface {
	Key() txlock.Key
	Owner() string
	Err() error
}

type ownerKey struct{}

// Owners returns the innermost owner of a context, or nil.
func Owners(ctx context.Context) *Owner {
	owner, _ := ctx.Value(ownerKey{}).(*Owner)
	return owner
}

// WithLease returns a context whose acquires of the lease's key enter it again.
func WithLease(ctx context.Context, l Held) context.Context {
	return context.WithValue(ctx, ownerKey{}, &Owner{Lease: l, Outer: Owners(ctx)})
}

// WithName returns a context whose acquires have an owner of that name.
func WithName(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, ownerKey{}, &Owner{Name: name})
}

// For returns the innermost from here that counts for a key: the holder of a lease of
// that key and of the type L which is not over, or a name; or nil. A lease that another
// package, or another key, is asked for has its own owner: goroutines under one context
// would not exclude each other else.
func For[L Held](o *Owner, key txlock.Key) *Owner {
	for ; o != nil && o.Lease != nil; o = o.Outer {
		if l, ok := o.Lease.(L); ok && l.Key().String() == key.String() && l.Err() == nil {
			return o
		}
	}
	return o
}

// NameOf returns the name that a context gives to the owner of all keys, if it does.
func NameOf(ctx context.Context) (name string, named bool) {
	for o := Owners(ctx); o != nil; o = o.Outer {
		if o.Lease == nil {
			return o.Name, true
		}
	}
	return "", false
}
