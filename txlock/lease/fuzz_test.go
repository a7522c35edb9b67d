package lease_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// FuzzHolds proves that the list of holds that the statements keep, by CONCAT and
// REPLACE, is the list that Go would keep: each byte acquires or releases one of 16
// holds of one of two owners. Holds alike but for one character are told apart.
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
			db, key, q := testdb.Open(t, engine), named(), gen.New()
			name := []byte(key.String())
			if err := q.EnsureLease(t.Context(), db.Admin(), gen.EnsureLeaseParams{Name: name, Slot: 0}); err != nil {
				t.Fatal(err)
			}
			var holds []string
			var owner string
			var last int64
			for i, b := range steps {
				who := fmt.Sprint("owner ", b>>4&1)
				if b&0x80 == 0 && !slices.Contains(holds, hold(b)) {
					reply, err := q.AcquireLease(t.Context(), db.Admin(), gen.AcquireLeaseParams{
						Owner: []byte(who), Note: []byte("note"), Hold: hold(b), TtlUs: 3_600_000_000, Name: name, Slot: 0, NotAfterUs: math.MaxInt64,
					})
					switch {
					case err != nil:
						t.Fatal(err)
					case len(holds) > 0 && who != owner:
						if reply != 1 {
							t.Fatalf("step %d of %x: somebody else's: %d", i, steps, reply)
						}
						continue
					case len(holds) > 0 && reply != last, len(holds) == 0 && reply <= last:
						t.Fatalf("step %d of %x: token %d after %d", i, steps, reply, last)
					}
					owner, last, holds = who, reply, append(holds, hold(b))
				} else {
					at := slices.Index(holds, hold(b))
					reply, err := q.ReleaseLease(t.Context(), db.Admin(), gen.ReleaseLeaseParams{Hold: hold(b), Name: name, Slot: 0})
					if err != nil || at < 0 && reply != 1 || at >= 0 && reply != last {
						t.Fatalf("step %d of %x: release of hold %d: %d, %v, token %d", i, steps, at, reply, err, last)
					}
					if at >= 0 {
						holds = slices.Delete(holds, at, at+1)
					}
				}
				var kept string
				err := db.Admin().QueryRowContext(t.Context(), "SELECT holds FROM lockstep_leases WHERE name = ? AND slot = 0", name).Scan(&kept)
				if err != nil || kept != strings.Join(holds, "") {
					t.Fatalf("step %d of %x: the list is %q, want %q: %v", i, steps, kept, holds, err)
				}
			}
		}
	})
}
