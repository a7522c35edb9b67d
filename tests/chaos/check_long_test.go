package main

import (
	"fmt"
	"testing"
)

// TestCheckLong proves that a history that is as long as that of ten minutes is judged
// in time, and the one thing that is wrong in it found.
func TestCheckLong(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"acquire", "share", "permit"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const holds = 3000
			key := map[string]string{"acquire": leaseKeys[0], "share": sharedKeys[0], "permit": permitKeys[0]}[kind]
			var s story
			for i := range int64(holds) {
				at := 100 + i*10
				switch {
				case kind == "share" && i%5 == 0:
					s.hold(fmt.Sprint(i), "acquire among readers", key, uint64(100+i), at-100, at, at+5)
				case kind == "acquire":
					s.hold(fmt.Sprint(i), kind, key, uint64(100+i), at-100, at, at+5)
				default: // two at a time
					s.hold(fmt.Sprint(i), kind, key, uint64(100+i), at-100, at, at+5)
					s.hold(fmt.Sprint(i, "b"), kind, key, uint64(100+i), at-100, at+1, at+4)
				}
			}
			if v := (&verdict{}).check(s.ops, s.data); len(v.violations) > 0 {
				t.Errorf("%d violations, the first: %v", len(v.violations), v.violations[0])
			}
			s.hold("late", "acquire", key, 1<<40, 1, 100+holds*5+1, 100+holds*5+3)
			v := (&verdict{}).check(s.ops, s.data)
			if _, ok := v.found([]string{notLinear}, key); v.overlaps == 0 || !ok {
				t.Errorf("%d overlaps, %d violations", v.overlaps, len(v.violations))
			}
		})
	}
}
