package fault

import (
	"errors"
	"testing"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	a, b := errors.New("a"), errors.New("b")
	for _, errs := range [][]error{{a}, {a, nil}, {nil, a}, {nil, a, nil}} {
		if err := Join(errs...); err != a { //nolint:errorlint // what is tested
			t.Errorf("%v became %v", errs, err)
		}
	}
	if err := Join(nil, nil); err != nil {
		t.Errorf("nothing became %v", err)
	}
	if err := Join(a, nil, b); !errors.Is(err, a) || !errors.Is(err, b) {
		t.Errorf("a and b became %v", err)
	}
}
