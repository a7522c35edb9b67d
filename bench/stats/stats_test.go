package stats_test

import (
	"math"
	"slices"
	"testing"

	"github.com/dca00107/lockstep/bench/stats"
)

// TestSummary proves medians and quartiles, of values in any order.
func TestSummary(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   stats.Summary
	}{
		{[]float64{7}, stats.Summary{N: 1, Q1: 7, Median: 7, Q3: 7}},
		{[]float64{3, 1}, stats.Summary{N: 2, Q1: 1.5, Median: 2, Q3: 2.5}},
		{[]float64{5, 1, 4, 2, 3}, stats.Summary{N: 5, Q1: 2, Median: 3, Q3: 4}},
		{[]float64{4, math.NaN(), 1, 2, 3}, stats.Summary{N: 4, Q1: 1.75, Median: 2.5, Q3: 3.25}},
	} {
		before := slices.Clone(c.values)
		if got := stats.Of(c.values); got != c.want {
			t.Errorf("Of(%v) = %+v, want %+v", c.values, got, c.want)
		}
		if slices.ContainsFunc(c.values, math.IsNaN) {
			continue
		}
		if !slices.Equal(before, c.values) {
			t.Errorf("Of has changed %v to %v", before, c.values)
		}
	}
	if s := stats.Of(nil); s.N != 0 || !math.IsNaN(s.Median) {
		t.Errorf("Of(nil) = %+v", s)
	}
}

// TestPercentile proves the ends and the middle.
func TestPercentile(t *testing.T) {
	t.Parallel()
	values := []float64{30, 10, 20}
	for percent, want := range map[float64]float64{0: 10, 50: 20, 75: 25, 100: 30} {
		if got := stats.Percentile(values, percent); got != want {
			t.Errorf("Percentile(%v) = %v, want %v", percent, got, want)
		}
	}
	if !math.IsNaN(stats.Percentile(nil, 50)) {
		t.Error("a percentile of nothing is a number")
	}
}

// TestRatios proves that a round is divided by the base of the same round.
func TestRatios(t *testing.T) {
	t.Parallel()
	got := stats.Ratios([]float64{2, 30, 4, 5, 1}, []float64{1, 10, math.NaN(), 0})
	if !slices.Equal(got, []float64{2, 3}) {
		t.Errorf("Ratios = %v", got)
	}
}

// TestTurns proves that everybody has a turn in each round, and that nobody is always
// first or always follows the same.
func TestTurns(t *testing.T) {
	t.Parallel()
	const n = 5
	firsts, pairs := map[int]bool{}, map[[2]int]int{}
	for round := range 2 * n {
		turns := stats.Turns(round, n)
		firsts[turns[0]] = true
		for i := range n - 1 {
			pairs[[2]int{turns[i], turns[i+1]}]++
		}
		slices.Sort(turns)
		if !slices.Equal(turns, []int{0, 1, 2, 3, 4}) {
			t.Errorf("round %d: %v", round, turns)
		}
	}
	if len(firsts) < n {
		t.Errorf("only %v are ever first", firsts)
	}
	for pair, times := range pairs {
		if times > n {
			t.Errorf("%d follows %d in %d of %d rounds", pair[1], pair[0], times, 2*n)
		}
	}
}
