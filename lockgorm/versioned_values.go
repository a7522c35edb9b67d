package lockgorm

import (
	"fmt"
	"reflect"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock"
)

// checkValues refuses an update whose values set the version, or have another version
// than the model.
func (v *versioned) checkValues(stmt *gorm.Statement) error {
	value := reflect.Indirect(reflect.ValueOf(stmt.Dest))
	var written []string
	if value.Kind() == reflect.Map {
		for _, key := range value.MapKeys() {
			written = append(written, fmt.Sprint(key))
		}
	}
	set, _ := stmt.Clauses["SET"].Expression.(clause.Set)
	for _, assignment := range set {
		written = append(written, assignment.Column.Name)
	}
	for _, name := range written {
		if name == v.field.Name || names(name, v.field.DBName) {
			return fmt.Errorf("%w: %s: the update sets %q, which the plugin increments", ErrVersion, stmt.Schema.Name, name)
		}
	}
	if why := whyNotSet(stmt); why != "" {
		return fmt.Errorf("%w: %s: the update can't be compared, since %s", ErrVersion, stmt.Schema.Name, why)
	}
	if value.Kind() != reflect.Struct || v.any || stmt.Dest == stmt.Model {
		return nil
	}
	other := &gorm.Statement{DB: stmt.DB}
	if err := other.Parse(stmt.Dest); err != nil {
		return nil // GORM will say so
	}
	field := other.Schema.LookUpField(v.field.DBName)
	if field == nil {
		return nil
	}
	carried, zero := field.ValueOf(stmt.Context, value)
	if zero {
		return nil
	}
	for _, loaded := range v.loaded {
		if fmt.Sprint(reflect.Indirect(reflect.ValueOf(carried))) != fmt.Sprint(uint64(loaded)) {
			return fmt.Errorf("%w: the values have version %v, the %s has %d: %w", txlock.ErrConflict, carried, stmt.Schema.Name, uint64(loaded), fault.ErrGiven)
		}
	}
	return nil
}
