package lockgorm

import (
	"crypto/rand"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock"
)

// Version is the type of a version column: an optimistic lock in the record itself. A
// model has one such field, by value and of any name; 0 is the version of a model that
// was not loaded. It is a number in JSON, so that it can travel to a user and back, and
// BIGINT UNSIGNED NOT NULL DEFAULT 1 to AutoMigrate. A column of a smaller type is too
// small: Create returns the server's error 1264.
//
// Versions are not counted. A create begins with a random number, whatever version the model
// carries, since it may be that of a row which was deleted (KeepVersion is for imports). Each
// update adds another one, from 1 to 2^30: so a version that was rolled back is none that is ever
// committed, wherever a copy of it has stayed, in a model, a form or a cache. Somebody
// else's commit has the same one with a probability below e/2^30, one in 395 million.
// Versions of a row rise for some 2^33 updates and begin anew below 2^31 then: compare them
// for equality only. JavaScript reads them exactly for some 16 million updates; with the
// tag json:",string" for ever.
//
// Every update and delete of a loaded model is made only where the row still has the
// version that was loaded, and an update raises it, whatever columns it selects or omits;
// so do Save, UpdateColumn, Unscoped and soft deletes. An update that has nothing to set, which
// GORM doesn't send, is compared by a SELECT ... FOR UPDATE and raises nothing. It returns txlock.ErrConflict
// where somebody else has changed the row, gorm.ErrRecordNotFound where it is gone, and
// in a batch where one of the rows is; the statement's own transaction is rolled
// back, one of yours goes on and should be. After success the model has the row's
// version, after an error its old one. When your own transaction or savepoint is rolled
// back afterwards, GORM doesn't tell: the models that it has written keep versions that
// no row has or will have, and their next write is a conflict. Load in the transaction what it changes.
//
// A conflict is txlock.Retryable where GORM has loaded the model in the same transaction, and
// somebody else has changed the row since. That of a model from before is not: another run would
// find it again. Nor is that of a version which the transaction itself has written, be it
// that it has undone it by a savepoint or that it writes another copy of the model, nor that of values of
// an update that carry another version than the model, as those of a form do. ErrVersion is returned, before anything is sent, where there is
// nothing to compare, be it in an association that would be saved with the model, unless a
// hook has loaded that; AnyVersion is the way around. Other conditions of yours may exclude rows, as usual.
//
// A Version needs the plugin, db.Use(lockgorm.New()): without it every write of the model
// fails. What bypasses models, as Exec, Table() and the foreign keys' ON DELETE do, neither
// compares nor raises: raise the version there by hand, by any number. A row that is
// made by Exec has version 1, also where one of the same primary key had it before.
type Version uint64

// ErrVersion is returned, before anything is sent, by a write of a model with a Version
// that can't be compared: the model was not loaded, or the statement may change rows
// of other models. The transaction goes on.
var ErrVersion = errors.New("lockgorm: no version to compare")

// AnyVersion lets one update or delete change rows whatever their version, be it of
// many rows by a where clause: db.Model(&Order{}).Clauses(lockgorm.AnyVersion).Where(...).
// An update raises the versions nevertheless, so that who has loaded one of the rows
// before is told. A model given to it has version 0 afterwards: load it again.
var AnyVersion clause.Expression = anyVersion{}

type anyVersion struct{}

const anyVersionSetting = "lockstep:any_version"

// ModifyStatement notes the wish with the statement.
func (anyVersion) ModifyStatement(stmt *gorm.Statement) {
	needPlugin(stmt, "AnyVersion")
	stmt.Settings.Store(anyVersionSetting, true)
}

// Build adds nothing to the SQL.
func (anyVersion) Build(clause.Builder) {}

// KeepVersion lets one create write the versions that its models or maps carry, as an import
// or a restore needs it: db.Clauses(lockgorm.KeepVersion).Create(&orders). Who has loaded an
// earlier row of the same primary key and version may then save over this one. Without it a
// create begins with a new version, which its models have afterwards.
var KeepVersion clause.Expression = keepVersion{}

type keepVersion struct{}

const keepVersionSetting = "lockstep:keep_version"

// ModifyStatement notes the wish with the statement.
func (keepVersion) ModifyStatement(stmt *gorm.Statement) {
	needPlugin(stmt, "KeepVersion")
	stmt.Settings.Store(keepVersionSetting, true)
}

// Build adds nothing to the SQL.
func (keepVersion) Build(clause.Builder) {}

var (
	_ driver.Valuer                 = Version(0)
	_ schema.GormDataTypeInterface  = Version(0)
	_ schema.CreateClausesInterface = Version(0)
	_ schema.UpdateClausesInterface = Version(0)
	_ schema.DeleteClausesInterface = Version(0)
)

// Scan reads the version of a row. NULL is 0, not loaded.
func (v *Version) Scan(value any) error {
	switch value := value.(type) {
	case nil:
		*v = 0
		return nil
	case int64:
		if value >= 0 {
			*v = Version(value)
			return nil
		}
	case uint64:
		*v = Version(value)
		return nil
	case []byte:
		return v.parse(string(value))
	case string:
		return v.parse(value)
	}
	return fmt.Errorf("lockgorm: a Version can't be read from %T %v", value, value)
}

func (v *Version) parse(text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return fmt.Errorf("lockgorm: read a Version: %w", err)
	}
	*v = Version(n)
	return nil
}

// Value is what the driver sends.
func (v Version) Value() (driver.Value, error) {
	if v > math.MaxInt64 {
		return nil, fmt.Errorf("lockgorm: version %d is too large", uint64(v))
	}
	return int64(v), nil
}

// GormDataType makes the column an unsigned integer.
func (Version) GormDataType() string { return string(schema.Uint) }

// CreateClauses makes GORM ask for the plugin. GORM calls it once, when it parses the
// model: a column that AutoMigrate adds gives version 1 to the rows that are there.
func (Version) CreateClauses(field *schema.Field) []clause.Interface {
	field.NotNull = true
	if !field.HasDefaultValue {
		field.HasDefaultValue, field.DefaultValue, field.DefaultValueInterface = true, "1", int64(1)
	}
	return needed
}

// UpdateClauses makes GORM ask for the plugin.
func (Version) UpdateClauses(*schema.Field) []clause.Interface { return needed }

// DeleteClauses makes GORM ask for the plugin.
func (Version) DeleteClauses(*schema.Field) []clause.Interface { return needed }

var needed = []clause.Interface{needsPlugin{}}

// needsPlugin fails a statement on a model with a Version that no callback of the
// plugin has seen. It is asked inside of GORM's callbacks, which report by AddError.
type needsPlugin struct{}

func (needsPlugin) ModifyStatement(stmt *gorm.Statement) {
	if _, ok := stmt.Plugins[(*Plugin)(nil).Name()]; !ok {
		_ = stmt.AddError(fmt.Errorf("%w: the Version of %s needs the plugin: call db.Use(lockgorm.New())", ErrVersion, stmt.Schema.Name))
	}
}

func (needsPlugin) Name() string               { return "" }
func (needsPlugin) Build(clause.Builder)       {}
func (needsPlugin) MergeClause(*clause.Clause) {}

// versionField returns the Version of a statement's model, or nil.
func versionField(stmt *gorm.Statement) (version *schema.Field, err error) {
	if stmt.Schema == nil || stmt.SQL.Len() > 0 {
		return nil, nil
	}
	return versionOf(stmt.Schema)
}

// versionOf returns the Version of a model, or nil.
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

// isAny tells whether the statement may change rows of any version.
func isAny(stmt *gorm.Statement) bool {
	_, ok := stmt.Settings.Load(anyVersionSetting)
	return ok
}

// isKept tells whether a create writes the versions that its models carry.
func isKept(stmt *gorm.Statement) bool {
	_, ok := stmt.Settings.Load(keepVersionSetting)
	return ok
}

// A version is raised by up to largestStep, from at most largestBefore: what is above is
// cut off, so that no sum exceeds a signed BIGINT. A first one is above the numbers of an
// INT UNSIGNED column, so that a column which is too small is found out by the first create.
const (
	largestStep   = 1 << 30
	largestBefore = 1<<62 - 1
	beforeFirst   = 1 << 32
)

// newStep returns what versions are raised by, from 1 to largestStep, which nobody else's
// step is likely to be.
func newStep() int64 {
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	return int64(binary.NativeEndian.Uint64(random[:])%largestStep) + 1
}

// raisedBy returns the version after an update, as the server computes it.
func (v Version) raisedBy(step int64) Version { return v&largestBefore + Version(step) }

// isLargest tells whether the version is the largest number of an integer type that is
// too small. Without strict mode the server keeps it, whatever is added.
func (v Version) isLargest() bool {
	switch v {
	case math.MaxInt8, math.MaxUint8, math.MaxInt16, math.MaxUint16, 1<<23 - 1, 1<<24 - 1, math.MaxInt32, math.MaxUint32:
		return true
	}
	return false
}

// conflict is a version that was compared, and the other one that the row has.
type conflict struct{ loaded, now Version }

// conflictOf is the error of a lost race.
func conflictOf(db *gorm.DB, conflicts []conflict) error {
	err := fmt.Errorf("%w: the %s has another version than the one that was loaded: somebody else has changed it, or the transaction that wrote it was rolled back", txlock.ErrConflict, db.Statement.Schema.Name)
	if len(conflicts) > 0 && !slices.ContainsFunc(conflicts, func(c conflict) bool { return !mayDiffer(db, c) }) {
		return err
	}
	return fmt.Errorf("%w: %w", err, fault.ErrGiven)
}
