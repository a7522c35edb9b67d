package lockgorm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// upsertSetting marks a create whose models are locked. If it updates rows that are there,
// ON DUPLICATE KEY UPDATE takes whichever row any unique key finds, so that it says
// besides that this has the primary key of the model. A model whose key the database makes
// has that of no row that is there.
const upsertSetting = "lockstep:upsert"

// fenceUpserts makes GORM write that into the statements which are marked, and refuses
// upserts that can't compare a version, whoever has made them so.
func fenceUpserts(db *gorm.DB) {
	name := clause.OnConflict{}.Name()
	build, ok := db.ClauseBuilders[name]
	if !ok {
		build = func(c clause.Clause, builder clause.Builder) { c.Build(builder) }
	}
	db.ClauseBuilders[name] = func(c clause.Clause, builder clause.Builder) {
		if stmt, ok := builder.(*gorm.Statement); ok && upserts(stmt) {
			if ofStatement(stmt) != nil {
				_ = stmt.AddError(noUpsert(stmt))
			}
			if isFencedUpsert(stmt) {
				c.Expression = sameRecord(stmt, c.Expression)
			}
		}
		build(c, builder)
	}
}

// upserts tells whether a create updates the rows that are there. GORM updates them even
// where it is told to do nothing, if it is told of updates, too.
func upserts(stmt *gorm.Statement) bool {
	c := stmt.Clauses[clause.OnConflict{}.Name()]
	conflict, ok := c.Expression.(clause.OnConflict)
	if !ok {
		return c.Expression != nil
	}
	return conflict.UpdateAll || slices.ContainsFunc(conflict.DoUpdates, func(a clause.Assignment) bool {
		return a.Value != a.Column // as GORM writes nothing
	})
}

func isFencedUpsert(stmt *gorm.Statement) bool {
	by, ok := stmt.Settings.Load(upsertSetting)
	return ok && by == stmt // else GORM has handed it on to an association
}

// sameRecord adds to the assignments that the row found has the primary key of the one to
// be inserted. The server evaluates the subquery, which is an error, only where it hasn't.
func sameRecord(stmt *gorm.Statement, expr clause.Expression) clause.Expression {
	refuse := func(why string) { _ = stmt.AddError(unidentified(stmt, why)) }
	conflict, ok := expr.(clause.OnConflict)
	insert, _ := stmt.Clauses["INSERT"].Expression.(clause.Insert)
	if !ok || len(stmt.Schema.PrimaryFields) == 0 || strings.Contains(strings.ToUpper(insert.Modifier), "IGNORE") {
		refuse("it is an upsert that can't be told to change them alone")
	}
	var updates clause.Set
	for _, assignment := range conflict.DoUpdates {
		if why := whyNotAssigned(stmt, assignment); why != "" {
			refuse(why)
		}
	}
	for _, key := range stmt.Schema.PrimaryFields {
		column := clause.Column{Name: key.DBName}
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

// explainUpsert says what it means that the subquery was evaluated.
func explainUpsert(db *gorm.DB) {
	var server *driver.MySQLError
	if isFencedUpsert(db.Statement) && errors.As(db.Error, &server) && server.Number == 1242 { // ER_SUBQUERY_NO_1_ROW
		db.Error = fmt.Errorf("%w: the upsert has found another record of %s than its model, by a unique key: load that record and update it, or name the keys by Clauses(lockgorm.On(...)): %w", txlock.ErrInvalidKey, db.Statement.Table, db.Error)
	}
	db.Statement.Settings.Delete(upsertSetting)
}
