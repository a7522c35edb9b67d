package crowd

import (
	"slices"
	"time"
)

// Result is what the spans of a crowd tell.
type Result struct {
	// HandOvers are the times from the end of one holder to the grant of the next, in
	// microseconds, where somebody waited.
	HandOvers []float64
	// Passed are, for each grant, how many were waiting who had asked before.
	Passed []float64
}

// slack is how much earlier somebody must have asked to have been passed: who asks first
// need not come first to the server.
const slack = 5 * time.Millisecond

// Analyse tells how a lock went from hand to hand.
func Analyse(spans []Span) Result {
	byGrant := slices.Clone(spans)
	slices.SortFunc(byGrant, func(a, b Span) int { return int(a.Granted - b.Granted) })
	var r Result
	for i, span := range byGrant {
		if i > 0 {
			if before := byGrant[i-1]; span.Asked < before.Freed {
				r.HandOvers = append(r.HandOvers, float64(span.Granted-before.Freed)/1e3)
			}
		}
		passed := 0
		for _, later := range byGrant[i+1:] {
			if later.Asked < span.Asked-int64(slack) {
				passed++
			}
		}
		r.Passed = append(r.Passed, float64(passed))
	}
	return r
}
