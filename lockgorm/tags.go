package lockgorm

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/txlock"
)

// tagName is the struct tag that names the family of a model's keys; see Locker.
const tagName = "lockstep"

// tagged returns the field of a model that has the tag.
func tagged(model reflect.Type) (field reflect.StructField, ok bool) {
	for _, field := range reflect.VisibleFields(model) {
		if _, ok := field.Tag.Lookup(tagName); ok {
			return field, true
		}
	}
	return field, false
}

// keyOfTag returns the key that the tag of a model names.
func keyOfTag(stmt *gorm.Statement, model reflect.Value) ([]txlock.Key, error) {
	field, _ := tagged(stmt.Schema.ModelType)
	key, err := keyByTag(stmt, field, model)
	if err != nil {
		return nil, fmt.Errorf("%w: the tag %s:%q of %s.%s: %w", txlock.ErrInvalidKey, tagName, field.Tag.Get(tagName), stmt.Schema.Name, field.Name, err)
	}
	return []txlock.Key{key}, nil
}

func keyByTag(stmt *gorm.Statement, field reflect.StructField, model reflect.Value) (key txlock.Key, err error) {
	name, options, hashed := strings.Cut(field.Tag.Get(tagName), ",")
	if hashed && options != "hashed" {
		return key, fmt.Errorf("%q is no option: write %q or %q", options, name, name+",hashed")
	}
	var of []txlock.FamilyOption
	if hashed {
		of = append(of, txlock.Hashed)
	}
	if err := txlock.NewFamily[int64](name, of...).Key(1).Validate(); err != nil {
		return key, err
	}
	primary := stmt.Schema.PrimaryFields
	if len(primary) != 1 {
		return key, fmt.Errorf("the primary key has %d columns, a tag is for one: write a method LockKeys", len(primary))
	}
	id := primary[0]
	at := id.StructField.Index // of the embedded struct, too, that has it
	if len(at) < len(field.Index) || !slices.Equal(at[:len(field.Index)], field.Index) {
		return key, fmt.Errorf("the primary key is %s: move the tag there, or write a method LockKeys", id.Name)
	}
	value, _ := id.ValueOf(stmt.Context, model)
	v := reflect.ValueOf(value)
	switch {
	case v.IsValid() && v.Type() == reflect.TypeFor[uuid.UUID]():
		return txlock.NewFamily[uuid.UUID](name, of...).Key(v.Interface().(uuid.UUID)), nil
	case v.CanInt():
		return txlock.NewFamily[int64](name, of...).Key(v.Int()), nil
	case v.CanUint():
		return txlock.NewFamily[uint64](name, of...).Key(v.Uint()), nil
	case v.Kind() != reflect.String:
		return key, fmt.Errorf("%s is a %v, a tag is for integers, strings and UUIDs: write a method LockKeys", id.Name, id.FieldType)
	case !isBinary(id):
		return key, fmt.Errorf("keys are compared byte by byte, the column %s perhaps not, and then one row has several keys: make it gorm:\"type:varbinary(191)\", or write a method LockKeys that converts %s to one spelling", id.DBName, id.Name)
	}
	return txlock.NewFamily[string](name, of...).Key(v.String()), nil
}

// isBinary tells whether the column is declared as one that is compared byte by byte.
func isBinary(field *schema.Field) bool {
	declared := strings.ToLower(field.TagSettings["TYPE"])
	return strings.HasPrefix(declared, "binary") || strings.HasPrefix(declared, "varbinary")
}
