package lockgorm

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/columns"
	"github.com/dca00107/lockstep/txlock"
)

// tagName is the struct tag that names the family of a model's keys; see Locker.
const tagName = "lockstep"

// tag is what the tag of a model says. It is read once.
type tag struct {
	id   *schema.Field // the primary key
	key  func(id reflect.Value) txlock.Key
	fold string // the collation that the option fold names, or ""
	pads bool   // the column may take strings for one that differ by what fills them up
	asks bool   // only the server knows how the column compares strings
	err  error  // why it can't be followed
}

// keyOfTag returns the key that the tag of a model names.
func (p *Plugin) keyOfTag(db *gorm.DB, model reflect.Value) ([]txlock.Key, error) {
	stmt := db.Statement
	t := p.tagOf(stmt.Schema)
	if t.err != nil {
		return nil, t.err
	}
	id := reflect.Zero(t.id.IndirectFieldType)
	if _, zero := t.id.ValueOf(stmt.Context, model); !zero {
		// What ValueOf returns may be GORM's serializer.
		id = reflect.Indirect(t.id.ReflectValueOf(stmt.Context, model))
	}
	if t.pads && strings.TrimRight(id.String(), " \x00") != id.String() {
		return nil, wrongTag(stmt.Schema, fmt.Errorf("%q has blanks or zero bytes at its end, which the column perhaps does not count: cut them off, or declare the column %s", id, varbinary))
	}
	if t.asks && !id.IsZero() {
		if err := p.checkColumn(db, t); err != nil {
			return nil, err
		}
	}
	return []txlock.Key{t.key(id)}, nil
}

// tagOf returns the tag of a model that has one.
func (p *Plugin) tagOf(model *schema.Schema) *tag {
	if known, ok := p.tags.Load(model); ok {
		return known.(*tag)
	}
	t := new(tag)
	if err := t.read(model, p.family...); err != nil {
		t.err = wrongTag(model, err)
	}
	known, _ := p.tags.LoadOrStore(model, t)
	return known.(*tag)
}

// wrongTag returns the error of a model whose tag can't be followed.
func wrongTag(model *schema.Schema, why error) error {
	field := tagsOf(model.ModelType)[0]
	return fmt.Errorf("%w: the tag %s:%q of %s.%s: %w", txlock.ErrInvalidKey, tagName, field.Tag.Get(tagName), model.Name, field.Name, why)
}

// read reads the tag, and refuses one that can't be followed.
func (t *tag) read(model *schema.Schema, family ...txlock.FamilyOption) error {
	fields, primary := tagsOf(model.ModelType), model.PrimaryFields
	words := strings.Split(fields[0].Tag.Get(tagName), ",")
	name := words[0]
	family = slices.Clone(family)
	for _, option := range words[1:] {
		switch collation, folds := strings.CutPrefix(option, "fold="); {
		case option == "hashed":
			family = append(family, txlock.Hashed())
		case folds && t.fold == "" && collation != "":
			t.fold, family = collation, append(family, txlock.Fold(collation))
		default:
			return fmt.Errorf("%q is not an option: write %q, %q, or the collation of a text column as in %q", option, name, name+",hashed", name+",fold=utf8mb4_0900_ai_ci")
		}
	}
	if t.fold == "" {
		family = append(family, txlock.Exact()) // as the column is found to compare
	}
	if err := txlock.NewFamily[string](name, family...).Key("text").Validate(); err != nil {
		return err
	}
	if len(primary) != 1 {
		return fmt.Errorf("the primary key has %d columns, a tag is for one: write a method LockKeys", len(primary))
	}
	t.id = primary[0]
	if err := t.isAt(fields); err != nil {
		return err
	}
	if t.fold != "" && t.id.IndirectFieldType.Kind() != reflect.String {
		return fmt.Errorf("%s is a %v, and fold= is for strings: leave it out", t.id.Name, t.id.FieldType)
	}
	if t.key = keysBy(t.id.IndirectFieldType, name, family); t.key == nil {
		return fmt.Errorf("%s is a %v%s, a tag is for integers, strings and the UUID of github.com/google/uuid: make it one of these, or write a method LockKeys", t.id.Name, t.id.FieldType, of(t.id.IndirectFieldType))
	}
	declared := declaredBy(t.id)
	if why := declared.Misfit(t.id.IndirectFieldType, t.fold); why != "" {
		return fmt.Errorf("the column %s %s", t.id.DBName, why)
	}
	if t.id.IndirectFieldType.Kind() == reflect.String {
		if _, converts := reflect.New(t.id.IndirectFieldType).Interface().(driver.Valuer); converts || t.id.Serializer != nil {
			return fmt.Errorf("%s is stored as something else than its text: write a method LockKeys that names what is stored", t.id.Name)
		}
		t.asks, t.pads = declared.Class() != columns.Bytes, declared.Kind != "VARBINARY" && t.fold == ""
	}
	return nil
}

// isAt refuses a tag that stands elsewhere than at the primary key.
func (t *tag) isAt(fields []reflect.StructField) error {
	at := slices.Clone(t.id.StructField.Index)
	for i, index := range at {
		at[i] = max(index, -index-1) // GORM's way to mark an embedded pointer
	}
	for _, field := range fields {
		if len(at) < len(field.Index) || !slices.Equal(at[:len(field.Index)], field.Index) {
			return fmt.Errorf("the primary key is %s, %s has the tag: move the tag there, or write a method LockKeys", t.id.Name, field.Name)
		}
	}
	return nil
}

// of names the package of a type, so that a UUID is told from another.
func of(t reflect.Type) string {
	if t.PkgPath() == "" {
		return ""
	}
	return " of " + t.PkgPath()
}

// keysBy returns how to make the key of an identifier of this type, or nil.
func keysBy(id reflect.Type, name string, of []txlock.FamilyOption) func(id reflect.Value) txlock.Key {
	switch zero := reflect.Zero(id); {
	case id == reflect.TypeFor[uuid.UUID]():
		family := txlock.NewFamily[uuid.UUID](name, of...)
		return func(id reflect.Value) txlock.Key { return family.Key(id.Interface().(uuid.UUID)) }
	case zero.CanInt():
		family := txlock.NewFamily[int64](name, of...)
		return func(id reflect.Value) txlock.Key { return family.Key(id.Int()) }
	case zero.CanUint():
		family := txlock.NewFamily[uint64](name, of...)
		return func(id reflect.Value) txlock.Key { return family.Key(id.Uint()) }
	case id.Kind() == reflect.String:
		family := txlock.NewFamily[string](name, of...)
		return func(id reflect.Value) txlock.Key { return family.Key(id.String()) }
	}
	return nil
}

// tagged holds what tagsOf has found.
var tagged sync.Map

// tagsOf returns the fields of a model that have the tag, those of embedded structs too.
func tagsOf(model reflect.Type) []reflect.StructField {
	if known, ok := tagged.Load(model); ok {
		return known.([]reflect.StructField)
	}
	found := findTags(model, nil)
	tagged.Store(model, found)
	return found
}

func findTags(model reflect.Type, at []int) (found []reflect.StructField) {
	for i := range model.NumField() {
		field := model.Field(i)
		field.Index = append(slices.Clone(at), i)
		if _, ok := field.Tag.Lookup(tagName); ok {
			found = append(found, field)
		}
		inner := field.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		settings := schema.ParseTagSetting(field.Tag.Get("gorm"), ";")
		_, embedded := settings["EMBEDDED"]
		if as, ignored := settings["-"]; ignored && !strings.EqualFold(strings.TrimSpace(as), "migration") {
			continue
		}
		if (embedded || field.Anonymous) && inner.Kind() == reflect.Struct && inner != model {
			found = append(found, findTags(inner, field.Index)...)
		}
	}
	return found
}

// varbinary is what to write for a column that compares strings as keys are compared.
const varbinary = `gorm:"type:varbinary(191)"`

// declaredBy returns what the tag of a field declares, or the zero value.
func declaredBy(field *schema.Field) columns.Type {
	words := strings.FieldsFunc(strings.ToUpper(field.TagSettings["TYPE"]), func(r rune) bool { return r == '(' || r == ' ' })
	if len(words) == 0 {
		return columns.Type{}
	}
	c := columns.Type{Kind: words[0]}
	if c.Class() == columns.Bytes {
		c.Collation = "binary"
	}
	return c
}

// lookUp asks the server for a column of a table, both quoted.
func lookUp(table, name string, ask func(text string) (*sql.Rows, error)) (columns.Type, error) {
	c, err := columns.LookUp(table, name, ask)
	if errors.Is(err, columns.ErrMissing) {
		err = fmt.Errorf("%w: name the column that the table has by gorm:\"column:...\": %w", txlock.ErrInvalidKey, err)
	}
	return c, err
}

// checkColumn looks up, once for each table, whether it tells rows apart as the keys of a
// tag do.
func (p *Plugin) checkColumn(db *gorm.DB, t *tag) error {
	type of struct {
		model *schema.Schema
		table string
	}
	stmt := db.Statement
	at := of{stmt.Schema, tableOf(stmt)}
	why, known := p.columns.Load(at)
	if !known {
		c, err := lookUp(at.table, stmt.Quote(t.id.DBName), func(text string) (*sql.Rows, error) {
			return senderOf(stmt).QueryContext(stmt.Context, text)
		})
		if err != nil {
			return fmt.Errorf("lockgorm: %w (what is declared %s is not looked up)", err, varbinary)
		}
		why, _ = p.columns.LoadOrStore(at, c.Misfit(t.id.IndirectFieldType, t.fold))
	}
	if why != "" {
		return wrongTag(stmt.Schema, fmt.Errorf("the column %s %s", t.id.DBName, why))
	}
	return nil
}

// tableOf returns the table of a statement, quoted and without an alias.
func tableOf(stmt *gorm.Statement) string {
	if stmt.TableExpr != nil {
		if parts := table.FindStringSubmatch(tableText(stmt)); parts != nil {
			return parts[1] + parts[2]
		}
	}
	return stmt.Quote(stmt.Schema.Table)
}
