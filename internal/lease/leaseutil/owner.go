package leaseutil

import (
	"context"

	"github.com/dca00107/lockstep/txlock"
)

// Owner is who acquires under a context: the holder of a lease, for the key of that lease
// only, or a name that the program has given, for all keys. Outer is the owner of the
// context around it.
type Owner struct {
	Lease Held   // nil for a name
	Name  string // if there is no lease
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

// WithLease returns a context under which an acquire of the lease's key re-enters the
// lease.
func WithLease(ctx context.Context, l Held) context.Context {
	return context.WithValue(ctx, ownerKey{}, &Owner{Lease: l, Outer: Owners(ctx)})
}

// WithName returns a context whose acquires have an owner of that name.
func WithName(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, ownerKey{}, &Owner{Name: name})
}

// For returns the innermost owner, from o outwards, that counts for a key: the holder of
// a lease of that key and of type L that isn't over, or a name; or nil. Leases of other
// keys and of other packages don't count, so that goroutines under one context exclude
// each other.
func For[L Held](o *Owner, key txlock.Key) *Owner {
	for ; o != nil && o.Lease != nil; o = o.Outer {
		if l, ok := o.Lease.(L); ok && l.Key().String() == key.String() && l.Err() == nil {
			return o
		}
	}
	return o
}

// NameOf returns the name that the context gives to the owner of all keys, if there is
// one.
func NameOf(ctx context.Context) (name string, named bool) {
	for o := Owners(ctx); o != nil; o = o.Outer {
		if o.Lease == nil {
			return o.Name, true
		}
	}
	return "", false
}
