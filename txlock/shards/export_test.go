package shards

import "time"

// LookAgain makes the processes of tests look often, and Begin wait as much shorter. It is
// to be called before the set is used.
func (s *Shards) LookAgain(d time.Duration) *Shards {
	s.lookAgain = d
	return s
}
