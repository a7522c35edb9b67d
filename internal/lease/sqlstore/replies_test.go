package sqlstore

import (
	"errors"
	"math"
	"os"
	"regexp"
	"testing"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// TestRepliesAreKnown proves that each statement of leases that answers with an insert id has
// an entry with all its replies, and feeds the reader what is none of them.
func TestRepliesAreKnown(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`-- name: (\w+) :exec(?:lastid|result)`)
	found := 0
	for _, file := range []string{"leases", "shared"} {
		text, err := os.ReadFile("../../../gen/" + file + ".sql.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if _, known := meanings[m[1]]; !known {
				t.Errorf("%s has no entry in meanings", m[1])
			}
		}
	}
	if found != len(meanings) {
		t.Errorf("%d statements, and %d entries in meanings", found, len(meanings))
	}
	for statement, m := range meanings {
		ids := []int64{math.MinInt64, -1, 15, 16, 1 << 50, store.MaxToken, SharedBit, SharedBit + 15, SharedBit + 16, math.MaxInt64}
		for id := range int64(8) {
			ids = append(ids, id)
		}
		for _, id := range ids {
			want, known := m.others[id]
			token := id &^ SharedBit
			isToken := !known && m.token && id >= 0 && token >= firstToken && (m.bit || token == id)
			if isToken {
				want, known = store.Done, true
			}
			a, err := answerOf(statement, 3)(id, nil)
			if known != (err == nil) || !known && !errors.Is(err, fault.ErrReply) || known && a.Reply != want || a.Slot != 3 {
				t.Errorf("%s: the insert id %d is read as %+v, %v", statement, id, a, err)
			}
			if isToken && (int64(a.Token) != token || a.Shared != (id != token)) {
				t.Errorf("%s: the insert id %d is read as the token %d, shared %t", statement, id, a.Token, a.Shared)
			}
		}
	}
	if a, err := answerOf("NoSuchStatement", 0)(1<<50, nil); !errors.Is(err, fault.ErrReply) {
		t.Errorf("a statement without an entry is read as %+v, %v", a, err)
	}
}

// TestRepliesForSeveral feeds the reader of the statements for several leases what is none
// of their replies.
func TestRepliesForSeveral(t *testing.T) {
	t.Parallel()
	const near, bit = 1 << 50, 1 << 30
	for _, c := range []struct {
		id, affected int64
		rows         int
		ok           bool
	}{
		{0, 0, 3, true},
		{bit + 5, 2, 3, true},
		{bit + 5, 3, 3, true}, // with the row of a history
		{7*bit + 5, 6, 3, true},
		{bit + 5, 4, 3, false},
		{bit + 5, 1, 3, false},
		{bit + 5, -2, 3, false},
		{5, 2, 3, false},
		{8 * bit, 2, 3, false}, // of a fourth row
		{-1, 64, 32, false},
		{math.MinInt64 + bit, 2, 3, false},
	} {
		if done, clock, ok := rawsql.Reply(c.id, c.affected, near, c.rows); ok != c.ok {
			t.Errorf("the insert id %d with %d changed rows is read as %b, %d, %t", c.id, c.affected, done, clock, ok)
		}
	}
}
