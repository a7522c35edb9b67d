package shards

import (
	"context"
	"time"
)

// LookAgain makes the processes of tests look often, and Begin wait as much shorter. It is
// to be called before the set is used.
func (s *Shards) LookAgain(d time.Duration) *Shards {
	s.lookAgain = d
	return s
}

// Replace writes a record in place of the one that was read.
func (s *Shards) Replace(ctx context.Context, name, old, text string) error {
	return s.shards[name].replace(ctx, old, parseRecord(text))
}
