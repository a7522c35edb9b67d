package testdb

import "testing"

func TestMain(m *testing.M) { Main(m) }

// eachEngine runs a test on every engine.
func eachEngine(t *testing.T, test func(t *testing.T, engine Engine)) {
	t.Helper()
	OnServers(t, func(t *testing.T, engine Engine) {
		NeedsServer(t)
		test(t, engine)
	})
}

// has demands what a query returns.
func has(t *testing.T, q Queryer, text, want string) {
	t.Helper()
	var got string
	check(t, q.QueryRowContext(t.Context(), text).Scan(&got))
	if got != want {
		t.Errorf("%s is %s, want %s", text, got, want)
	}
}

// TestMeet counts what is run together: any two of three settings in all their combinations.
func TestMeet(t *testing.T) {
	t.Setenv("LOCKSTEP_LONG", "")
	pairs, runs := map[[2]int]int{}, 0
	for i := range 3 {
		for j := range 4 {
			for _, on := range []bool{false, true} {
				if Meet(i, j, on) {
					pairs[[2]int{i, j}]++
					runs++
				}
			}
		}
	}
	if runs != 12 || len(pairs) != 12 {
		t.Errorf("%d runs with %d pairs, want half of 24 with 12", runs, len(pairs))
	}
	t.Setenv("LOCKSTEP_LONG", "1")
	if !Meet(1) || !Meet(true, 0) {
		t.Error("by night something isn't run")
	}
}
