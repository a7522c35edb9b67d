package txlock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// FuzzKeyOnServers proves that any name makes a key that is either refused with the reason, or
// names its row and no other: what the servers keep and hash is what Go has.
func FuzzKeyOnServers(f *testing.F) {
	for _, name := range []string{"", "order:42", "Job", "job ", "Jöb", "a\x00b", "\xff", "'; --", "%", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("ö", 128)} {
		f.Add(name)
	}
	family := NewFamily[string]("fuzz", Hashed)
	f.Fuzz(func(t *testing.T, name string) {
		key, record := Named(name), family.Key(name)
		valid := name != "" && len(name) <= 255 && utf8.ValidString(name)
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

// FuzzServerError proves that whatever a server answers, the error of a call has it as
// its cause, says what was asked for, and is started again only where the server has
// rolled back.
func FuzzServerError(f *testing.F) {
	for _, number := range []uint16{0, 1020, 1062, 1205, 1206, 1213, 1290, 1317, 1792, 1927, 1969, 3024, 3169, 3547, 3572, 4031} {
		f.Add(number, "message", false)
		f.Add(number, "", true)
	}
	f.Fuzz(func(t *testing.T, number uint16, message string, rollbackOnTimeout bool) {
		answer := &mysql.MySQLError{Number: number, Message: message}
		server := guard.Server{RollbackOnTimeout: rollbackOnTimeout}
		err := lockError("lock", fmt.Errorf("execute: %w", answer), server)
		var cause *mysql.MySQLError
		if !errors.As(err, &cause) || cause != answer || !strings.HasPrefix(err.Error(), "lock: ") {
			t.Errorf("%v became %v", answer, err)
		}
		verdict := interpret(err)
		gone := verdict.gone || verdict.onTimeout && rollbackOnTimeout
		if Retryable(err) != gone {
			t.Errorf("%v: retryable %t, rolled back %t", err, Retryable(err), gone)
		}
		if doomed := rules.Ended(answer, server); (doomed != nil) != gone || doomed != nil && !errors.Is(doomed, ErrTxDoomed) {
			t.Errorf("%v dooms its transaction: %v, rolled back %t", answer, doomed, gone)
		}
		outside := Explain("acquire", answer)
		if !errors.Is(outside, answer) || errors.Is(outside, ErrTxDoomed) {
			t.Errorf("outside of transactions %v became %v", answer, outside)
		}
		if Retryable(answer) && Unknown(answer) {
			t.Errorf("%v: executed or not, and rolled back for certain", answer)
		}
	})
}
