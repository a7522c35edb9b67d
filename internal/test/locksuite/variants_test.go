package locksuite

import "testing"

// TestMeet counts what is run together: of four adapters, the kinds of keys and the
// three settings of a variant, any three in all their combinations.
func TestMeet(t *testing.T) {
	const adapters = 4
	type three [6]any // which three, and their values
	seen := make(map[three]bool)
	runs := 0
	for a := range adapters {
		for v := range variants {
			for _, kind := range met(a, v) {
				runs++
				values := [5]any{a, kind.name, v >> 2, v >> 1 & 1, v & 1}
				for x := range values {
					for y := range x {
						for z := range y {
							seen[three{x, y, z, values[x], values[y], values[z]}] = true
						}
					}
				}
			}
		}
	}
	sizes, want := [5]int{adapters, len(kinds), 2, 2, 2}, 0
	for x := range sizes {
		for y := range x {
			for z := range y {
				want += sizes[x] * sizes[y] * sizes[z]
			}
		}
	}
	if len(seen) != want || runs != 24 {
		t.Errorf("%d runs with %d combinations of three, want 24 with %d", runs, len(seen), want)
	}
}
