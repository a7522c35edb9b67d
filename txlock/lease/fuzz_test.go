package lease_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// FuzzHolds proves that the list of holds in a row is the list of those that were acquired and
// not released: each byte acquires or releases one of 16 holds of one of two owners. Holds
// alike but for one character are told apart.
func FuzzHolds(f *testing.F) {
	f.Add([]byte{0x00, 0x80})
	f.Add([]byte{0x00, 0x01, 0x02, 0x81, 0x80, 0x82, 0x80})
	f.Add([]byte{0x00, 0x10, 0x80, 0x10, 0x00, 0x90})
	f.Add([]byte{0x03, 0x03, 0x83, 0x83})
	for _, engine := range testdb.Engines() {
		testdb.Open(f, engine) // which takes longer than an input may
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 200 {
			steps = steps[:200]
		}
		hold := func(b byte) string { return ";" + strings.Repeat("A", 21) + string('a'+rune(b&0x0f)) }
		for _, engine := range testdb.Engines() {
			db, at := testdb.Open(t, engine), store.Row{Key: named().String()}
			on := openStore(t, db.Admin())
			must(t, on.Make(t.Context(), at))
			var holds []string
			var owner string
			var last uint64
			for i, b := range steps {
				who := fmt.Sprint("owner ", b>>4&1)
				if b&0x80 == 0 && !slices.Contains(holds, hold(b)) {
					reply, token, err := acquireOf(who, hold(b), time.Hour, false)(t.Context(), on, at)
					switch {
					case err != nil:
						t.Fatal(err)
					case len(holds) > 0 && who != owner:
						if reply != store.Refused {
							t.Fatalf("step %d of %x: somebody else's: %d", i, steps, reply)
						}
						continue
					case reply != store.Done, len(holds) > 0 && token != last, len(holds) == 0 && token <= last:
						t.Fatalf("step %d of %x: %d, token %d after %d", i, steps, reply, token, last)
					}
					owner, last, holds = who, token, append(holds, hold(b))
				} else {
					n, want := slices.Index(holds, hold(b)), store.Done
					if n < 0 {
						want = store.Refused
					}
					if reply, err := on.Release(t.Context(), at, hold(b)); err != nil || reply != want {
						t.Fatalf("step %d of %x: release of hold %d: %d, %v, token %d", i, steps, n, reply, err, last)
					}
					if n >= 0 {
						holds = slices.Delete(holds, n, n+1)
					}
				}
				var kept string
				err := db.Admin().QueryRowContext(t.Context(), "SELECT holders FROM lockstep_leases WHERE name = ? AND slot = 0", at.Key).Scan(&kept)
				if err != nil || kept != strings.Join(holds, "") {
					t.Fatalf("step %d of %x: the list is %q, want %q: %v", i, steps, kept, holds, err)
				}
			}
		}
	})
}
