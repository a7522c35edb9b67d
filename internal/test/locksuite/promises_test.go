package locksuite

import (
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestPromises: every behaviour stands on the page, no other does, and the page is right about
// which of them a stand-in shows. That its tests exist internal/test/tools/docs.TestNames shows.
func TestPromises(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var behaved, shown []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		if len(cells) != 3 {
			continue
		}
		for _, match := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(cells[1], -1) {
			behaved = append(behaved, match[1])
			inMemory := strings.Contains(cells[2], "memory")
			testdb.ErrorIf(t, inMemory != (beyondMemory[match[1]] == ""), "%q: the page says memory: %t", match[1], inMemory)
		}
	}
	for _, b := range slices.Concat(behaviours, versions, onces) {
		shown = append(shown, b.name)
	}
	slices.Sort(behaved)
	slices.Sort(shown)
	testdb.ErrorIf(t, !slices.Equal(behaved, shown), "on the page:\n%s\nin the suite:\n%s", strings.Join(behaved, "\n"), strings.Join(shown, "\n"))
}

// TestMeet: of four adapters, the kinds of keys and the three settings of a variant any two
// are run in all their combinations, and any three in a long run.
func TestMeet(t *testing.T) {
	for long, want := range map[bool]struct{ together, runs, combinations int }{false: {2, 15, 66}, true: {3, 24, 164}} {
		runs, seen := 0, map[string]bool{}
		for a := range 4 {
			for v := range variants {
				for _, kind := range met(a, v, long) {
					runs++
					for set := range uint(1 << 5) {
						some := [5]any{a, kind.name, v >> 2, v >> 1 & 1, v & 1}
						for i := range some {
							if set>>i&1 == 0 {
								some[i] = "any"
							}
						}
						if bits.OnesCount(set) == want.together {
							seen[fmt.Sprint(some)] = true
						}
					}
				}
			}
		}
		testdb.ErrorIf(t, len(seen) != want.combinations || runs != want.runs, "long %t: %d runs with %d combinations, want %+v", long, runs, len(seen), want)
	}
}
