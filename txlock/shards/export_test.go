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

// Read reads a record. The function writes another one in its place.
func (s *Shards) Read(ctx context.Context, name string) (replace func(text string) error, err error) {
	found, err := s.shards[name].read(ctx)
	return func(text string) error {
		_, err := s.shards[name].replace(ctx, found, parseRecord(text))
		return err
	}, err
}
