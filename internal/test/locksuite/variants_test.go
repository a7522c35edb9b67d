package locksuite

import (
	"fmt"
	"testing"
)

// TestMeet counts what is run together: of four adapters, the kinds of keys and the
// three settings of a variant, any two in all their combinations, and any three in a long run.
func TestMeet(t *testing.T) {
	const adapters = 4
	seen := map[bool]map[string]bool{false: {}, true: {}}
	runs := make(map[bool]int)
	for a := range adapters {
		for v := range variants {
			for _, long := range []bool{false, true} {
				for _, kind := range met(a, v, long) {
					runs[long]++
					values := [5]any{a, kind.name, v >> 2, v >> 1 & 1, v & 1}
					for x := range values {
						for y := range x {
							for z := range y {
								if long {
									seen[long][fmt.Sprint(x, y, z, values[x], values[y], values[z])] = true
								}
							}
							if !long {
								seen[long][fmt.Sprint(x, y, values[x], values[y])] = true
							}
						}
					}
				}
			}
		}
	}
	sizes := [5]int{adapters, len(kinds), 2, 2, 2}
	want := map[bool]int{}
	for x := range sizes {
		for y := range x {
			want[false] += sizes[x] * sizes[y]
			for z := range y {
				want[true] += sizes[x] * sizes[y] * sizes[z]
			}
		}
	}
	for long, most := range map[bool]int{false: 15, true: 24} {
		if len(seen[long]) != want[long] || runs[long] != most {
			t.Errorf("long %t: %d runs with %d combinations, want %d with %d", long, runs[long], len(seen[long]), most, want[long])
		}
	}
}
