package txlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/columns"
)

// CheckColumns compares the keys of the family with the columns of a table, orders or shop.orders,
// whose values are the identifiers: one column, or for a struct one for each of its fields, in
// their order. It returns ErrInvalidKey with the fix if a row of the table may have several keys:
// if the collation of a text differs from that of Fold, or, with Exact, doesn't compare bytes; if
// blanks or zero bytes at the end don't count; or if the column has another type than the
// identifier. Call it when a program starts, beside schema.Check: it sends a SELECT or two for
// each column, reads no row, and locks nothing.
func (f Family[I]) CheckColumns(ctx context.Context, db *sql.DB, table string, names ...string) error {
	if ctx == nil {
		return errors.New("txlock: CheckColumns needs a context, got nil")
	}
	if db == nil {
		return errors.New("check columns: the *sql.DB is nil")
	}
	if f.format == nil {
		return Key{bad: "the zero Family: make families by NewFamily"}.Validate()
	}
	fields := []reflect.Type{reflect.TypeFor[I]()}
	if id := fields[0]; len(names) != 1 && id.Kind() == reflect.Struct {
		fields = fields[:0]
		for i := range id.NumField() {
			fields = append(fields, id.Field(i).Type)
		}
	}
	if len(names) != len(fields) {
		return fmt.Errorf("%w: %s: CheckColumns got %d columns for the %d values that identify a record: name each of them", ErrInvalidKey, f.name, len(names), len(fields))
	}
	if _, bad := f.fold("text"); f.bad != "" || bad != "" {
		return Key{name: f.name + ":", bad: f.bad + bad}.Validate()
	}
	var wrong []error
	for i, name := range names {
		ask := func(text string) (*sql.Rows, error) { return db.QueryContext(ctx, text) }
		c, err := columns.LookUp(quoted(table), quoted(name), ask)
		if err == nil && c.Class() == columns.Texts {
			var list string
			list, err = columns.ListKind(quoted(table), quoted(name), ask)
			c.Kind = cmp.Or(list, c.Kind)
		}
		switch {
		case errors.Is(err, columns.ErrMissing):
			return fmt.Errorf("%w: %s: %w", ErrInvalidKey, f.name, err)
		case err != nil:
			return fmt.Errorf("check columns: %w", err)
		}
		if why := f.misfit(c, fields[i]); why != "" {
			wrong = append(wrong, fmt.Errorf("%w: %s: the column %s of %s %s", ErrInvalidKey, f.name, name, table, why))
		}
	}
	return errors.Join(wrong...)
}

// misfit returns why keys of the family don't tell the rows of a column apart, or "".
func (f Family[I]) misfit(c columns.Type, id reflect.Type) string {
	text := id.Kind() == reflect.String
	switch {
	case c.Class() == columns.Unknown:
		return fmt.Sprintf("is a %s, whose comparison isn't known: make it VARBINARY, or lock by another key", c.Kind)
	case !text && id != reflect.TypeFor[uuid.UUID]() && (hasTexts(id) || id.Kind() > reflect.Uintptr):
		return fmt.Sprintf("can't be compared with a %v: make sure by a test that what is one row has one key", id)
	}
	why, fills := c.Misfit(id, f.collation), c.Fills()
	if why == "" && text && f.collation == "" && fills != "" {
		why = fmt.Sprintf("doesn't count %s at the end of a text, so that one row has several keys: make it VARBINARY, or VARCHAR with a binary collation that doesn't pad, or fold the keys as it compares (txlock.Fold(%q))", fills, c.Collation)
	}
	return why
}

// quoted quotes a name, and the database before it if there is one.
func quoted(name string) string {
	return "`" + strings.ReplaceAll(strings.ReplaceAll(name, "`", "``"), ".", "`.`") + "`"
}
