package txlock_test

import (
	"strings"
	"testing"

	"github.com/dca00107/lockstep/txlock"
)

func TestSegmentsKeys(t *testing.T) {
	t.Parallel()
	products, hashedLots := txlock.NewFamily[int64]("product"), txlock.NewFamily[int64]("lot", txlock.Hashed())
	keys := txlock.Segments(products.Key(7), 3)
	if len(keys) != 3 || keys[0].String() != "product:7#1" || keys[2].String() != "product:7#3" {
		t.Errorf("segments %v", keys)
	}
	for _, key := range txlock.Segments(hashedLots.Key(7), 2) {
		if err := key.Validate(); err != nil || !key.Hashed() {
			t.Errorf("%v: %v, hashed %t", key, err, key.Hashed())
		}
	}
	for name, bad := range map[string][]txlock.Key{
		"none":       txlock.Segments(products.Key(7), 0),
		"too many":   txlock.Segments(products.Key(7), 1001),
		"zero id":    txlock.Segments(products.Key(0), 2),
		"zero key":   txlock.Segments(txlock.Key{}, 2),
		"a long one": txlock.Segments(txlock.Named(strings.Repeat("x", 254)), 10)[9:],
	} {
		if len(bad) == 0 {
			t.Errorf("%s: no key", name)
		}
		for _, key := range bad {
			wants(t, name, key.Validate(), txlock.ErrInvalidKey)
		}
	}
}
