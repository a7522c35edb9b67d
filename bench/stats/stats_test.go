package stats_test

import (
	"math"
	"slices"
	"testing"

	"github.com/dca00107/lockstep/bench/stats"
	"github.com/dca00107/lockstep/internal/test/testdb"
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
		got := stats.Of(c.values)
		testdb.ErrorIf(t, got != c.want, "Of(%v) = %+v, want %+v", c.values, got, c.want)
		if slices.ContainsFunc(c.values, math.IsNaN) {
			continue
		}
		testdb.ErrorIf(t, !slices.Equal(before, c.values), "Of has changed %v to %v", before, c.values)
	}
	s := stats.Of(nil)
	testdb.ErrorIf(t, s.N != 0 || !math.IsNaN(s.Median), "Of(nil) = %+v", s)
}

// TestRatios proves that a round is divided by the base of the same round.
func TestRatios(t *testing.T) {
	t.Parallel()
	got := stats.Ratios([]float64{2, 30, 4, 5, 1}, []float64{1, 10, math.NaN(), 0})
	testdb.ErrorIf(t, !slices.Equal(got, []float64{2, 3}), "Ratios = %v", got)
}
