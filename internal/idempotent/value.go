package idempotent

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/txlock"
)

var inner = txlock.Internal(bridge.Pass{})

// maxResult is how long a stored result may be.
const maxResult = 16 << 20

// stored is a result in its row.
type stored struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
}

// Value asks for a key in the transaction of the scope. If that is the first, it calls fn
// and stores what fn returns. Otherwise it returns what the first has stored. Both get the
// value as it is stored.
func Value[T any](ctx context.Context, scope *txlock.Scope, key txlock.Key, options []txlock.OnceOption, fn func() (T, error)) (value T, first bool, err error) {
	var none T
	first, err = scope.Once(ctx, key, options...)
	if err != nil {
		return none, false, err
	}
	if !first {
		result, err := inner.ResultOfOnce(ctx, scope, key)
		if err == nil {
			value, err = decode[T](result)
		}
		if err != nil {
			return none, false, fmt.Errorf("once %q: %w", key, err)
		}
		return value, false, nil
	}
	if value, err = fn(); err != nil {
		return none, false, err
	}
	result, err := encode(nameOf[T](), value)
	if err == nil {
		value, err = decode[T](result)
	}
	if err != nil {
		return none, false, fmt.Errorf("once %q: %w", key, err)
	}
	if err := inner.AnswerOnce(ctx, scope, key, result); err != nil {
		return none, false, err
	}
	return value, true, nil
}

// EncodeAny returns the result that Value stores of a value of this type.
func EncodeAny(value any) ([]byte, error) { return encode(reflect.TypeOf(value).String(), value) }

// encode returns a result as it is stored, or txlock.ErrResult.
func encode(name string, value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("%w: it is not valid JSON: %w", txlock.ErrResult, err)
	}
	result, err := json.Marshal(stored{Type: name, Value: text})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", txlock.ErrResult, err)
	}
	if len(result) > maxResult {
		return nil, fmt.Errorf("%w: it has %d bytes, %d are allowed", txlock.ErrResult, len(result), maxResult)
	}
	return result, nil
}

// decode reads a stored result.
func decode[T any](result []byte) (value T, err error) {
	var none T
	if result == nil {
		return none, fmt.Errorf("%w: the first call has stored none", txlock.ErrResult)
	}
	var s stored
	if err := json.Unmarshal(result, &s); err != nil {
		return none, fmt.Errorf("%w: %w", txlock.ErrResult, err)
	}
	if want := nameOf[T](); s.Type != want {
		return none, fmt.Errorf("%w: it is of type %s, not %s", txlock.ErrResult, s.Type, want)
	}
	if err := json.Unmarshal(s.Value, &value); err != nil {
		return none, fmt.Errorf("%w: %w", txlock.ErrResult, err)
	}
	return value, nil
}

// nameOf is the name of a type, as programs write it.
func nameOf[T any]() string { return reflect.TypeFor[T]().String() }
