package memdb

import (
	"database/sql/driver"
	"fmt"
)

// Args are the arguments of a statement.
type Args []any

// argument returns an argument, converted as database/sql does.
func argument[T int64 | []byte](args Args, i int) T {
	v, err := driver.DefaultParameterConverter.ConvertValue(args[i])
	t, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("memdb: argument %d of a statement of lockstep's is a %T: %v", i, args[i], err))
	}
	return t
}

// Text returns an argument of bytes.
func (a Args) Text(i int) string { return string(argument[[]byte](a, i)) }

// Bytes returns a copy of an argument of bytes.
func (a Args) Bytes(i int) []byte { return []byte(a.Text(i)) }

// Number returns an argument that is a number.
func (a Args) Number(i int) int64 { return argument[int64](a, i) }
