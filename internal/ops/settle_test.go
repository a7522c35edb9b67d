package ops

import "testing"

// TestSettle proves what the rows contradict of the locks that the server has listed before, and what
// they don't. See TestHotKey for the same on servers.
func TestSettle(t *testing.T) {
	t.Parallel()
	row := Row{Kind: Named, Key: "hot"}
	holds := rowLock{Row: row, mode: Exclusive, session: 1}
	waits := rowLock{Row: row, mode: Exclusive, session: 1, waiting: true}
	shares := rowLock{Row: row, mode: Shared, session: 1}
	perhaps := rowLock{Row: row, mode: Shared, session: 1, unsure: true}
	leased := rowLock{Row: Row{Kind: LeaseRow, Key: "hot"}, mode: Exclusive, session: 1}
	for name, c := range map[string]struct {
		seen      rowLock
		granted   uint64 // the session that has the row when it is read, or 0
		changing  bool   // the row was granted anew during the look
		kept, new bool   // the lock stays, and the row is changing afterwards
	}{
		"the holder that the row has":               {holds, 1, false, true, false},
		"another one than the row has":              {holds, 2, false, false, true},
		"a reader, where the row has a holder":      {shares, 2, false, false, true},
		"a reader":                                  {shares, 0, true, true, true},
		"a holder of a row that was granted anew":   {holds, 0, true, false, true},
		"one of several readers":                    {perhaps, 2, false, true, false},
		"a waiter that has the row when it is read": {waits, 1, false, false, false},
		"a waiter for another one":                  {waits, 2, false, true, false},
		"a waiter for a row without a holder":       {waits, 0, false, true, false},
		"a row that has no token":                   {leased, 2, false, true, false},
	} {
		l := &look{seen: []rowLock{c.seen}, changing: make(map[Row]grant)}
		known := make(map[Row]grant)
		if c.granted > 0 {
			known[row] = grant{session: c.granted}
		}
		if c.changing {
			l.changing[row] = grant{}
		}
		err := l.settle(t.Context(), known)
		if _, changing := l.changing[row]; err != nil || (len(l.seen) == 1) != c.kept || changing != c.new {
			t.Errorf("%s: there are %+v, changing %v, %v", name, l.seen, changing, err)
		}
	}
}
