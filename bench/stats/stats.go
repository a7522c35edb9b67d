// Package stats makes medians and quartiles of what several rounds have measured.
package stats

import (
	"math"
	"slices"
)

// Summary is the median of some values, and the quartiles around it.
type Summary struct {
	N              int
	Q1, Median, Q3 float64
}

// Of summarises values, in any order. Those that are no number are left out.
func Of(values []float64) Summary {
	sorted := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	slices.Sort(sorted)
	if len(sorted) == 0 {
		return Summary{Q1: math.NaN(), Median: math.NaN(), Q3: math.NaN()}
	}
	return Summary{
		N:      len(sorted),
		Q1:     Quantile(sorted, 0.25),
		Median: Quantile(sorted, 0.5),
		Q3:     Quantile(sorted, 0.75),
	}
}

// Quantile returns the value below which the share q of the sorted values is, between two
// values by their distance to it (the seventh definition of Hyndman and Fan, which is
// the default of R and NumPy). Of no values it is no number.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	below := int(math.Floor(at))
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

// Percentile returns a percentile of values in any order.
func Percentile(values []float64, percent float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return Quantile(sorted, percent/100)
}

// Ratios divides the values of each round by the base of the same round, so that what
// slows down a round slows down both. Rounds without a base are left out.
func Ratios(values, base []float64) []float64 {
	var ratios []float64
	for round := range min(len(values), len(base)) {
		if ratio := values[round] / base[round]; !math.IsNaN(ratio) && !math.IsInf(ratio, 0) {
			ratios = append(ratios, ratio)
		}
	}
	return ratios
}

// Turns returns in which order n contenders run in a round. Each round begins with
// another one, and every other round goes backwards, so that none always follows the same.
func Turns(round, n int) []int {
	turns := make([]int, n)
	for i := range turns {
		turns[i] = (i + round) % n
	}
	if round%2 == 1 {
		slices.Reverse(turns)
	}
	return turns
}
