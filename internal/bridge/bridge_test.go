package bridge_test

import (
	"reflect"
	"testing"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestPass proves that no literal of a program is a Pass.
func TestPass(t *testing.T) {
	t.Parallel()
	pass := reflect.TypeFor[bridge.Pass]()
	for _, literal := range []any{struct{}{}, struct{ _ struct{} }{}} {
		testdb.ErrorIf(t, reflect.TypeOf(literal).AssignableTo(pass), "%T can be passed as a %v", literal, pass)
	}
}
