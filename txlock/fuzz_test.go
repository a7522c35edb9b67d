package txlock

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// FuzzKeyOnServers proves that any name makes a key that is either refused with the reason, or
// names its row and no other: what the servers keep and hash is what Go has.
func FuzzKeyOnServers(f *testing.F) {
	for _, name := range []string{"", "order:42", "Job", "job ", "Jöb", "a\x00b", "\xff", "'; --", `quote ' and \ back`, "Zürich:日本語:🔒", "%", "@", "@shop/x", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("ö", 128)} {
		f.Add(name)
	}
	family := NewFamily[string]("fuzz", Hashed(), Exact())
	for _, engine := range testdb.Engines() {
		testdb.Open(f, engine) // which takes longer than an input may
	}
	f.Fuzz(func(t *testing.T, name string) {
		key, record := Named(name), family.Key(name)
		valid := name != "" && len(name) <= 255 && utf8.ValidString(name) && name[0] != '@' // of a Namespace
		if err := key.Validate(); (err == nil) != valid || err != nil && !errors.Is(err, ErrInvalidKey) {
			t.Fatalf("%q: %v", name, err)
		}
		if key.String() != name || key != Named(name) || valid && key == Named(name+" ") {
			t.Errorf("%q is %q", name, key)
		}
		if record.Validate() == nil && record.String() != "fuzz:"+name {
			t.Errorf("the key of %q is %q", name, record)
		}
		if !valid {
			return
		}
		for _, engine := range testdb.Engines() {
			pool := testdb.Open(t, engine).Admin()
			if err := Ensure(t.Context(), pool, key); err != nil {
				t.Fatalf("Ensure(%q): %v", name, err)
			}
			var slot uint16
			var kept string
			err := pool.QueryRowContext(t.Context(), "SELECT name, CRC32(name) % 65536 FROM lockstep_locks WHERE name = ?", []byte(name)).Scan(&kept, &slot)
			if err != nil || kept != name || slot != key.Slot() {
				t.Errorf("%s keeps %q as %q in slot %d, want %d: %v", engine, name, kept, slot, key.Slot(), err)
			}
		}
	})
}
