package main

import (
	"fmt"
	"go/types"
)

// conversion is how a parameter becomes an identifier.
type conversion int

const (
	asIs     conversion = iota
	convert             // T(x), which keeps the value
	fromByte            // uuid.FromBytes, which may fail
)

// fits returns an error where a parameter can't be an identifier of the family.
func (v value) fits() error {
	if _, ok := v.conversion(); !ok {
		return fmt.Errorf("has the type %s, which is no key of a family of %s", v.kind, v.id)
	}
	return nil
}

// conversion tells how the parameter becomes the identifier. Only conversions that give
// equal rows equal keys are there: none between signed and unsigned, none to a smaller type.
func (v value) conversion() (c conversion, ok bool) {
	switch {
	case types.Identical(v.kind, v.id):
		return asIs, true
	case isBytes(v.kind) && types.TypeString(v.id, nil) == "github.com/google/uuid.UUID":
		return fromByte, true
	case isKind(v.kind, types.IsString) && isKind(v.id, types.IsString), isBytes(v.kind) && isKind(v.id, types.IsString):
		return convert, true
	case isKind(v.kind, types.IsInteger) && isKind(v.id, types.IsInteger):
		sizes := types.SizesFor("gc", "amd64")
		return convert, isKind(v.kind, types.IsUnsigned) == isKind(v.id, types.IsUnsigned) && sizes.Sizeof(v.kind) <= sizes.Sizeof(v.id)
	}
	return asIs, false
}

func isKind(t types.Type, info types.BasicInfo) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&info != 0
}

func isBytes(t types.Type) bool {
	s, ok := t.Underlying().(*types.Slice)
	return ok && types.Identical(s.Elem(), types.Typ[types.Byte])
}
