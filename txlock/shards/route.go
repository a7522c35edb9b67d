package shards

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/txlock"
)

// The route of a key is a stable format: other versions and other languages must come to the
// same shard. It is rendezvous hashing (D. Thaler, C. Ravishankar, "A Name-Based Mapping
// Scheme for Rendezvous", 1996): of all shards, a key goes to the one whose weight for it is
// the highest, where
//
//	weight = SHA-256(name of the shard, one zero byte, text of the key)
//
// and weights are compared byte by byte from the first. The text of the key is Key.String,
// or what RouteBy makes of it. So a shard that is added takes its part of the keys from all
// others, one that is removed leaves its keys to all others, and nothing else moves.
//
// In SQL, on both servers:
//
//	SELECT name FROM (SELECT 'a' AS name UNION SELECT 'b' UNION SELECT 'c') s
//	ORDER BY SHA2(CONCAT(name, X'00', 'order:42'), 256) DESC LIMIT 1
func route(names []string, text string) (best string) {
	var highest, weight [sha256.Size]byte
	buffer := make([]byte, 0, 128)
	for _, name := range names {
		buffer = append(append(append(buffer[:0], name...), 0), text...)
		if weight = sha256.Sum256(buffer); best == "" || bytes.Compare(weight[:], highest[:]) > 0 {
			best, highest = name, weight
		}
	}
	return best
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// checkName returns what is wrong with the name of a shard or of By.
func checkName(what, name string) error {
	if validName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("%w: the name %q of %s: it must have 1 to 64 of the characters A-Z a-z 0-9 _ . - and begin with a letter or a digit", txlock.ErrInvalidOption, name, what)
}

// set is what decides where keys go: the names of the shards in order, and that of By. Its
// text is "a,b,c" or "a,b,c by customer", and "-" without shards.
type set struct {
	names []string
	by    string
}

// none is the set from which Install comes.
const none = "-"

func (s set) String() string {
	text := cmp.Or(strings.Join(s.names, ","), none)
	if s.by != "" {
		text += " by " + s.by
	}
	return text
}

func (s set) has(name string) bool { return slices.Contains(s.names, name) }

func parseSet(text string) set {
	names, by, _ := strings.Cut(text, " by ")
	if names == none {
		return set{}
	}
	return set{strings.Split(names, ","), by}
}

// record is what the database of a shard says of the set: "a,b,c", or during a change
// "a,b,c -> a,b,c,d", and "=>" when nobody holds a key that moves.
type record struct {
	from, to set
	drained  bool
}

// stable is the record of a set that isn't being changed.
func stable(s set) record { return record{from: s, to: s} }

func (r record) String() string {
	switch from, to := r.from.String(), r.to.String(); {
	case from == to:
		return to
	case r.drained:
		return from + " => " + to
	default:
		return from + " -> " + to
	}
}

func parseRecord(text string) record {
	for _, arrow := range []string{" -> ", " => "} {
		if from, to, changing := strings.Cut(text, arrow); changing {
			return record{parseSet(from), parseSet(to), arrow == " => "}
		}
	}
	return stable(parseSet(text))
}

// knows reports whether a process with this set may go on under the record. None may before
// the first set is recorded everywhere.
func (r record) knows(s set) bool {
	return len(r.from.names) > 0 && (r.from.String() == s.String() || r.to.String() == s.String())
}

// moves reports whether the keys of a text move by the change. Where RouteBy changes, whoever reads
// the record knows one of its two functions at most: then all keys move.
func (r record) moves(text string) bool {
	return r.from.by != r.to.by || route(r.from.names, text) != route(r.to.names, text)
}
