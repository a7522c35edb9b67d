package main

import (
	"math"
	"slices"
)

// rule says by how much a figure may grow over a run: by a part of its level, and by what
// is noise at any level.
type rule struct {
	share, floor float64
}

// verdict is what a figure has done over a run.
type verdict struct {
	first, last float64 // the medians of the first and the last third
	growth      float64 // over the run, by the median slope
	surely      float64 // the growth that it has at least, but for one case in 700
	allowed     float64
	points      int
}

const (
	// fewest is how many points a figure is judged by at least.
	fewest = 15
	// sigmas is how sure a growth must be, as a quantile of the normal distribution.
	sigmas = 3
)

// judged tells whether there were points enough to say anything.
func (v verdict) judged() bool { return v.points >= fewest }

// flat tells whether the figure doesn't grow by more than it may.
func (v verdict) flat() bool { return v.surely <= v.allowed }

// judge takes the figures of a run, at equal distances in time. The slope is that of Theil
// and Sen, the median of the slopes between all pairs of points, which a third of wild
// points doesn't move; and its confidence limit is Sen's, by the variance of Kendall's tau.
func (r rule) judge(values []float64) verdict {
	n := len(values)
	v := verdict{points: n}
	if n == 0 {
		return v
	}
	third := max(1, n/3)
	v.first, v.last = median(values[:third]), median(values[n-third:])
	v.allowed = max(r.floor, r.share*v.first)
	slopes := make([]float64, 0, n*(n-1)/2)
	for i := range values {
		for j := i + 1; j < n; j++ {
			slopes = append(slopes, (values[j]-values[i])/float64(j-i))
		}
	}
	if len(slopes) == 0 {
		return v
	}
	slices.Sort(slopes)
	points, span := float64(n), float64(n-1)
	deviation := math.Sqrt(points * (points - 1) * (2*points + 5) / 18)
	low := (float64(len(slopes)) - sigmas*deviation) / 2
	v.growth = median(slopes) * span
	v.surely = slopes[max(0, int(low))] * span
	v.allowed = max(r.floor, r.share*(median(values)-v.growth/2)) // of the level at the beginning
	return v
}

// median is that of numbers that need not be sorted.
func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile is the value below which a part of the values is, NaN if there are none.
func quantile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := part * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

// steadied are waits without what the machine has added: each is divided by how much
// longer than usual a transaction without locks took in the same minute, where that was
// longer.
func steadied(waits, control []float64) []float64 {
	usual := quantile(control, 0.25)
	steady := slices.Clone(waits)
	for i := range min(len(waits), len(control)) {
		if usual > 0 && control[i] > usual {
			steady[i] *= usual / control[i]
		}
	}
	return steady
}

// slower is the verdict on waits, by those that were measured and by the steadied ones: what
// grows does so in both. Where a machine gets busy the measured ones grow, and where it comes
// to rest the steadied ones of a kind that waits for a fixed time.
func slower(measured, steady verdict) verdict {
	if measured.flat() {
		return measured
	}
	return steady
}
