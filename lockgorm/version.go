package lockgorm

import (
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock"
)

// A Version is a version column: an optimistic lock in the record itself. A model has one such
// field, by value and of any name. A model that was not loaded has version 0. In JSON it is a
// number, so that it can travel to a user and back. AutoMigrate makes it BIGINT UNSIGNED NOT NULL
// DEFAULT 1. A column of a smaller type is too small: Create returns the server's error 1264.
//
// Versions don't count updates. A create begins with a random number, whatever version the
// model has, since that may come from a row which was deleted (KeepVersion is for imports).
// Each update adds a random number from 1 to 2^30. So a version that was rolled back is never
// committed later, wherever a copy of it has stayed: in a model, a form or a cache. The
// probability that another transaction commits the same version is below e/2^30, one in 395
// million. The versions of a row increase for about 2^33 updates, and then restart below 2^31:
// compare them for equality only. JavaScript reads them exactly for about 16 million updates;
// with the tag json:",string" always.
//
// Every update and delete of a loaded model changes the row only if that still has the version
// that was loaded. An update increments the version, whatever columns it selects or omits. One
// that sets nothing is compared by a SELECT ... FOR UPDATE and increments nothing. A write
// returns txlock.ErrConflict if another transaction has changed the row, and
// gorm.ErrRecordNotFound if the row is gone; for a batch, one such row is enough. Then the
// statement's own transaction is rolled back; a transaction of yours stays open, and you should
// roll it back. After success the model has the row's version, after an error its old one. If
// you roll back your own transaction or savepoint later, the models keep versions that no row has
// or will have, and their next write is a conflict. So load in a transaction what it changes.
//
// A conflict is txlock.Retryable if GORM has loaded the model in the same transaction, and another
// transaction has changed the row since. Others are not, because a retry would end in the same
// conflict: those of a model that was loaded before, of a version that the transaction itself has
// written, and of an update whose values have another version than the model, as those of a form
// may. If there is nothing to compare, the write returns ErrVersion, before anything is sent, also
// for an association that would be saved with the model, unless a hook has loaded that.
//
// A Version needs the plugin, db.Use(lockgorm.New()): without it every write of the model
// fails. What bypasses models, such as Exec, Table() and ON DELETE of foreign keys, neither
// compares nor increments the version: increment it there yourself, by any number. A row that
// Exec inserts has version 1, even if an earlier row with the same primary key had it too.
type Version uint64

// ErrVersion is returned by a write of a model with a Version that can't be compared: the model
// was not loaded, or the statement may change rows of other models. Nothing is sent, and the
// transaction stays open.
var ErrVersion = errors.New("lockgorm: no version to compare")

// AnyVersion lets one update or delete change rows of any version, also many rows by a where
// clause: db.Model(&Order{}).Clauses(lockgorm.AnyVersion).Where(...). An update still increments
// the versions, so other programs that have loaded one of the rows get a conflict. The model of
// the statement has version 0 afterwards: load it again.
var AnyVersion clause.Expression = option{anyVersionOption, true}

// KeepVersion makes one create write the versions of its models or maps, for an import or a
// restore: db.Clauses(lockgorm.KeepVersion).Create(&orders). A program that has loaded an earlier
// row of the same primary key and version can then overwrite this one. Without KeepVersion a
// create begins with a new version, which its models have afterwards.
var KeepVersion clause.Expression = option{keepVersionOption, true}

var (
	_ driver.Valuer                 = Version(0)
	_ schema.GormDataTypeInterface  = Version(0)
	_ schema.CreateClausesInterface = Version(0)
	_ schema.UpdateClausesInterface = Version(0)
	_ schema.DeleteClausesInterface = Version(0)
)

// Scan reads the version of a row. NULL becomes 0, not loaded.
func (v *Version) Scan(value any) error {
	var n sql.Null[uint64]
	if err := n.Scan(value); err != nil {
		return fmt.Errorf("lockgorm: a Version can't be read from %T %v: %w", value, value, err)
	}
	*v = Version(n.V)
	return nil
}

// Value returns what the driver sends.
func (v Version) Value() (driver.Value, error) {
	if v > math.MaxInt64 {
		return nil, fmt.Errorf("lockgorm: version %d is too large", uint64(v))
	}
	return int64(v), nil
}

// GormDataType makes the column an unsigned integer.
func (Version) GormDataType() string { return string(schema.Uint) }

// CreateClauses makes a create fail without the plugin. GORM calls it once, when it parses the
// model, so it also sets the column's default, which gives existing rows version 1 when
// AutoMigrate adds the column.
func (Version) CreateClauses(field *schema.Field) []clause.Interface {
	field.NotNull = true
	if !field.HasDefaultValue {
		field.HasDefaultValue, field.DefaultValue, field.DefaultValueInterface = true, "1", int64(1)
	}
	return needed
}

// UpdateClauses makes an update fail without the plugin.
func (Version) UpdateClauses(*schema.Field) []clause.Interface { return needed }

// DeleteClauses makes a delete fail without the plugin.
func (Version) DeleteClauses(*schema.Field) []clause.Interface { return needed }

var needed = []clause.Interface{needsPlugin{}}

// needsPlugin makes a statement on a model with a Version fail if the plugin isn't used.
// GORM calls it in its callbacks, which report errors by AddError.
type needsPlugin struct{ option }

func (needsPlugin) ModifyStatement(stmt *gorm.Statement) {
	if !hasPlugin(stmt) {
		_ = stmt.AddError(fmt.Errorf("%w: the Version of %s needs the plugin: call db.Use(lockgorm.New())", ErrVersion, stmt.Schema.Name))
	}
}

// versionField returns the Version field of a statement's model, or nil.
func versionField(stmt *gorm.Statement) (version *schema.Field, err error) {
	if stmt.Schema == nil || stmt.SQL.Len() > 0 {
		return nil, nil
	}
	return versionOf(stmt.Schema)
}

// versionOf returns the Version field of a model, or nil.
func versionOf(model *schema.Schema) (version *schema.Field, err error) {
	for _, field := range model.Fields {
		if !isVersion(field) {
			continue
		}
		if version != nil || field.FieldType != field.IndirectFieldType {
			return nil, fmt.Errorf("%w: %s must have one Version, by value: see %s", ErrVersion, model.Name, field.Name)
		}
		version = field
	}
	return version, nil
}

func isVersion(field *schema.Field) bool {
	return field.IndirectFieldType == reflect.TypeFor[Version]() && field.DBName != ""
}

// isSet reports whether a statement has AnyVersion or KeepVersion.
func isSet(stmt *gorm.Statement, option string) bool {
	_, ok := optionOf[bool](stmt, option)
	return ok
}

// A version is raised by at most largestStep, after it was cut to largestBefore, so that
// no sum exceeds a signed BIGINT. A first version exceeds an INT UNSIGNED column, so that
// the first create fails if the column is too small.
const (
	largestStep   = 1 << 30
	largestBefore = 1<<62 - 1
	beforeFirst   = 1 << 32
)

// newStep returns a random number from 1 to largestStep, by which versions are raised.
func newStep() int64 {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return int64(binary.NativeEndian.Uint64(random[:])%largestStep) + 1
}

// raisedBy returns the version after an update, computed as on the server.
func (v Version) raisedBy(step int64) Version { return v&largestBefore + Version(step) }

// isLargest reports whether the version is the largest number of an integer type that is
// too small. Without strict mode the server stores that number instead of a larger one.
func (v Version) isLargest() bool {
	switch v {
	case math.MaxInt8, math.MaxUint8, math.MaxInt16, math.MaxUint16, 1<<23 - 1, 1<<24 - 1, math.MaxInt32, math.MaxUint32:
		return true
	}
	return false
}

// conflict is a version that was compared, and the version that the row has now.
type conflict struct{ loaded, now Version }

// conflictOf returns the error of a conflict.
func conflictOf(db *gorm.DB, conflicts []conflict) error {
	err := fmt.Errorf("%w: the %s has another version than the one that was loaded: another transaction changed it, or the one that wrote it was rolled back", txlock.ErrConflict, db.Statement.Schema.Name)
	if len(conflicts) > 0 && !slices.ContainsFunc(conflicts, func(c conflict) bool { return !mayDiffer(db, c) }) {
		return err
	}
	return fmt.Errorf("%w: %w", err, fault.ErrGiven)
}
