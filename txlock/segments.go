package txlock

import (
	"fmt"
	"strconv"
)

// maxSegments is the most parts that Segments makes.
const maxSegments = 1000

// Segments returns the keys of n parts of one resource, "product:7#1" to "product:7#4", hashed and
// marked by Shared as the key is: for a resource that many transactions use at once and that can
// be divided, such as the stock of a product. Scope.LockAny acquires a free part without waiting,
// Scope.LockAll the whole resource. The key itself is a separate lock. All programs must use the
// same n.
//
// For a number out of 1 to 1,000 it returns one key that every call refuses with ErrInvalidKey.
func Segments(key Key, n int) []Key {
	if n < 1 || n > maxSegments {
		return []Key{{name: key.name, bad: fmt.Sprintf("Segments(%d): a resource has 1 to %d parts", n, maxSegments)}}
	}
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = newKey(key.name+"#"+strconv.Itoa(i+1), key.hashed)
		keys[i].shared = key.shared
		if err := key.unmarked().Validate(); err != nil {
			keys[i].bad = key.bad
			if key.name == "" {
				keys[i].bad = "the key has no name"
			}
		}
	}
	return keys
}
