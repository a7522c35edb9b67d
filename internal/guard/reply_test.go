package guard

import (
	"database/sql/driver"
	"errors"
	"math"
	"testing"

	"github.com/dca00107/lockstep/internal/fault"
)

// TestNumberOfReply feeds the reader of a lock statement's number what is none.
func TestNumberOfReply(t *testing.T) {
	t.Parallel()
	one := func(values ...driver.Value) reply {
		return reply{columns: make([]string, len(values)), rows: [][]driver.Value{values}}
	}
	for _, c := range []struct {
		name  string
		reply reply
		want  int64
		ok    bool
	}{
		{"text", one([]byte("17"), nil), 17, true},
		{"of a prepared statement", one(int64(17)), 17, true},
		{"0", one(uint64(0)), 0, true},
		{"OK", reply{}, 0, false},
		{"no row", reply{columns: make([]string, 1)}, 0, false},
		{"a row more", reply{columns: make([]string, 1), rows: [][]driver.Value{{int64(1)}, {int64(1)}}}, 0, false},
		{"NULL", one(nil), 0, false},
		{"utf16", one([]byte("\x001\x007")), 0, false},
		{"a word", one([]byte("granted")), 0, false},
		{"empty", one([]byte{}), 0, false},
		{"out of range", one(uint64(math.MaxInt64 + 1)), 0, false},
	} {
		if n, err := c.reply.LastInsertId(); n != c.want || c.ok != (err == nil) || !c.ok && !errors.Is(err, fault.ErrReply) {
			t.Errorf("%s is read as %d, %v", c.name, n, err)
		}
	}
}
