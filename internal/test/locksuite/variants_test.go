package locksuite

import "testing"

// TestMeet counts what is run together: of four adapters, the kinds of keys and the
// three settings of a variant, any three in all their combinations.
func TestMeet(t *testing.T) {
	sizes := [5]int{4, len(kinds), 2, 2, 2}
	met := make(map[[6]int]bool) // which three, and their values
	runs := 0
	for a := range sizes[0] {
		for v := range variants {
			for k := range kinds {
				if !meet(a, v, k) {
					continue
				}
				runs++
				factors := [5]int{a, k, v >> 2, v >> 1 & 1, v & 1}
				for x := range factors {
					for y := range x {
						for z := range y {
							met[[6]int{x, y, z, factors[x], factors[y], factors[z]}] = true
						}
					}
				}
			}
		}
	}
	want := 0
	for x := range sizes {
		for y := range x {
			for z := range y {
				want += sizes[x] * sizes[y] * sizes[z]
			}
		}
	}
	if len(met) != want || runs != 24 {
		t.Errorf("%d runs with %d combinations of three, want 24 with %d", runs, len(met), want)
	}
}
