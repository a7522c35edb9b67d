package main

import (
	"fmt"
	"go/types"

	"github.com/pingcap/tidb/pkg/parser/mysql"
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
	if hasValue(v.kind) {
		return fmt.Errorf("has the type %s, whose method Value may send another value than that of the key: let sqlc write its underlying type", v.kind)
	}
	return nil
}

// hasValue tells whether a type decides itself what is sent, as a driver.Valuer. Of a UUID
// it is known.
func hasValue(t types.Type) bool {
	method, _, _ := types.LookupFieldOrMethod(t, true, nil, "Value")
	_, ok := method.(*types.Func)
	return ok && !isUUID(t)
}

// conversion tells how the parameter becomes the identifier. Only conversions that give
// equal rows equal keys are there: none between signed and unsigned, none to a smaller type.
func (v value) conversion() (c conversion, ok bool) {
	switch {
	case types.Identical(v.kind, v.id):
		return asIs, true
	case isBytes(v.kind) && isUUID(v.id):
		return fromByte, true
	case isKind(v.kind, types.IsString) && isKind(v.id, types.IsString), isBytes(v.kind) && isKind(v.id, types.IsString):
		return convert, true
	case isKind(v.kind, types.IsInteger) && isKind(v.id, types.IsInteger):
		return convert, isKind(v.kind, types.IsUnsigned) == isKind(v.id, types.IsUnsigned) && size(v.kind) <= size(v.id)
	}
	return asIs, false
}

func size(t types.Type) int { return int(types.SizesFor("gc", "amd64").Sizeof(t)) }

func isKind(t types.Type, info types.BasicInfo) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&info != 0
}

func isBytes(t types.Type) bool {
	s, ok := t.Underlying().(*types.Slice)
	return ok && types.Identical(s.Elem(), types.Typ[types.Byte])
}

func isUUID(t types.Type) bool { return types.TypeString(t, nil) == "github.com/google/uuid.UUID" }

// The sizes of integers, in bytes.
var integers = map[byte]int{mysql.TypeTiny: 1, mysql.TypeShort: 2, mysql.TypeInt24: 3, mysql.TypeLong: 4, mysql.TypeLonglong: 8}

func (c *column) isInteger() bool { return integers[c.kind] > 0 }

// A UUID has 16 bytes, or 36 characters.
const uuidBytes, uuidText = 16, 36

// identifies returns an error where a family of such identifiers, which folds as a collation
// does, may have several keys for one value of the column.
func (c *column) identifies(id types.Type, fold string) error {
	switch {
	case c.generated:
		return fmt.Errorf("is generated of other columns, and each write of those gives the row another key: lock it by another column")
	case isUUID(id) && (c.binary() && c.length == uuidBytes || c.isText() && c.length >= uuidText):
		return nil
	case isUUID(id):
		return fmt.Errorf("is %s: UUIDs are BINARY(16) or CHAR(36)", c.said)
	case isKind(id, types.IsString):
		return c.compares(fold)
	case !isKind(id, types.IsInteger):
		return fmt.Errorf("is locked by %s, and lockgen knows integers, strings and uuid.UUID", id)
	case !c.isInteger():
		return fmt.Errorf("is %s, of which one value may be equal to several integers: make it BIGINT, or lock it by another column", c.said)
	}
	return nil
}

// takes returns an error where a parameter isn't compared with the column as its key is.
func (c *column) takes(v value) error {
	if how, _ := v.conversion(); how == fromByte && (!c.binary() || c.length != uuidBytes) {
		return fmt.Errorf("is sent as 16 bytes to %s: let sqlc write uuid.UUID", c.said)
	}
	return nil
}

// stores returns an error where the column may get another value than that of the parameter.
// In strict mode, the default of both servers, what doesn't fit is an error, but not with
// IGNORE.
func (c *column) stores(v value, ignore bool) error {
	how, _ := v.conversion()
	switch {
	case c.kind == mysql.TypeEnum:
		return fmt.Errorf(`is an ENUM, which stores "2" as its second value`)
	case ignore && c.isInteger() && (size(v.kind) > integers[c.kind] || isKind(v.kind, types.IsUnsigned) != c.unsigned):
		return fmt.Errorf("is %s, and IGNORE stores the nearest value to what doesn't fit", c.said)
	case ignore && c.isText() && how != fromByte:
		return fmt.Errorf("is %s, and IGNORE cuts off what doesn't fit", c.said)
	case c.isText() && !c.binary() && !isUUID(v.id) && v.fold == "":
		return fmt.Errorf("is %s, which cuts off blanks at the end that don't fit: make it VARBINARY, or give the family txlock.Fold(%q)", c.said, c.name())
	}
	return nil
}
