// Package asserts lets tests switch off txlock.AssertLocked: package locktest sets
// the switch, which production code doesn't import.
package asserts

import "context"

type offKey struct{}

// Off returns a context under which nothing is asserted.
func Off(ctx context.Context) context.Context { return context.WithValue(ctx, offKey{}, true) }

// AreOff tells whether the context is one of Off.
func AreOff(ctx context.Context) bool { return ctx.Value(offKey{}) != nil }
