package asserts

import "context"

type offKey struct{}

// Off returns a context under which nothing is asserted.
func Off(ctx context.Context) context.Context { return context.WithValue(ctx, offKey{}, true) }

// AreOff reports whether the context comes from Off.
func AreOff(ctx context.Context) bool { return ctx.Value(offKey{}) != nil }
