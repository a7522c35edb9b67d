package lockgorm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// buildOnConflict builds upserts as GORM's driver does, and confines them to their models, if these
// are locked. ON DUPLICATE KEY UPDATE updates whichever row any unique key finds: so it adds a
// check that this row has the primary key of the model. No existing row has one that the server
// makes by AUTO_INCREMENT. It refuses upserts of models with a Version, which can't compare it.
func buildOnConflict(c clause.Clause, builder clause.Builder) {
	if stmt, ok := builder.(*gorm.Statement); ok && upserts(stmt) {
		w := stateOf(stmt)
		if w.versions != nil {
			_ = stmt.AddError(noUpsert(stmt))
		}
		if w.upsert {
			c.Expression = sameRecord(stmt, c.Expression)
		}
	}
	driversOnConflict(c, builder)
}

// driversOnConflict builds upserts as GORM's driver does.
var driversOnConflict = mysql.Dialector{Config: new(mysql.Config)}.ClauseBuilders()[onConflict]

// upserts reports whether a create updates existing rows. If OnConflict has both DoNothing
// and updates, GORM updates.
func upserts(stmt *gorm.Statement) bool {
	c := stmt.Clauses[onConflict]
	conflict, ok := c.Expression.(clause.OnConflict)
	if !ok {
		return c.Expression != nil
	}
	return conflict.UpdateAll || slices.ContainsFunc(conflict.DoUpdates, func(a clause.Assignment) bool {
		return a.Value != a.Column // GORM's way to write "do nothing"
	})
}

// sameRecord adds to the assignments a check that the row which was found has the primary
// key of the row to insert. If it hasn't, the server evaluates the subquery, which is an
// error. TiDB evaluates it for every row that was found.
func sameRecord(stmt *gorm.Statement, expr clause.Expression) clause.Expression {
	refuse := func(why string) { _ = stmt.AddError(unidentified(stmt, why)) }
	conflict, ok := expr.(clause.OnConflict)
	insert, _ := stmt.Clauses["INSERT"].Expression.(clause.Insert)
	if !ok || len(stmt.Schema.PrimaryFields) == 0 || strings.Contains(strings.ToUpper(insert.Modifier), "IGNORE") {
		refuse("it is an upsert that can't be limited to them")
	}
	var updates clause.Set
	for _, key := range stmt.Schema.PrimaryFields {
		column := clause.Column{Name: key.DBName}
		if fresh := key.AutoIncrement && key.DefaultValue == ""; !fresh && !isWritten(stmt, column) {
			refuse(fmt.Sprintf("it is an upsert that doesn't write %q, whose default may be the key of another record", key.DBName))
		}
		for _, assignment := range conflict.DoUpdates {
			if assignment.Value != (clause.Column{Table: "excluded", Name: key.DBName}) && names(assignment.Column.Name, key.DBName) {
				refuse(fmt.Sprintf("it makes another record of it, by %q", assignment.Column.Name))
			}
		}
		updates = append(updates, clause.Assignment{Column: column, Value: clause.Expr{
			SQL: "IF(? <=> VALUES(?), ?, (SELECT 1 UNION ALL SELECT 2))", WithoutParentheses: true, Vars: []any{column, column, column},
		}})
	}
	conflict.DoUpdates = slices.Concat(updates, conflict.DoUpdates)
	return conflict
}

// isWritten reports whether a create writes a value to the column in every row.
func isWritten(stmt *gorm.Statement, column clause.Column) bool {
	values, _ := stmt.Clauses["VALUES"].Expression.(clause.Values)
	i := slices.Index(values.Columns, column)
	return i >= 0 && !slices.ContainsFunc(values.Values, func(row []any) bool { return !isValue(row[i]) })
}

// explainUpsert explains the error of that subquery.
func explainUpsert(db *gorm.DB) {
	unwatch(db)
	var server *driver.MySQLError
	if stateOf(db.Statement).upsert && errors.As(db.Error, &server) && server.Number == 1242 { // ER_SUBQUERY_NO_1_ROW
		db.Error = fmt.Errorf("%w: the upsert has found another record of %s than its model, by a unique key, or this is TiDB, where an upsert can't be limited to its models: load that record and update it, or name the keys by Clauses(lockgorm.On(...)): %w", txlock.ErrInvalidKey, db.Statement.Table, db.Error)
	}
}
