package lockgorm

import (
	"errors"
	"fmt"
	"slices"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// upsertSetting marks a create whose models are locked and which updates rows that are
// there. ON DUPLICATE KEY UPDATE takes whichever row any unique key finds, so that it says
// besides that this has the primary key of the model. A model whose key the database makes
// has that of no row that is there.
const upsertSetting = "lockstep:upsert"

// fenceUpserts makes GORM write that into the statements which are marked.
func fenceUpserts(db *gorm.DB) {
	name := clause.OnConflict{}.Name()
	build, ok := db.ClauseBuilders[name]
	if !ok {
		build = func(c clause.Clause, builder clause.Builder) { c.Build(builder) }
	}
	db.ClauseBuilders[name] = func(c clause.Clause, builder clause.Builder) {
		if stmt, ok := builder.(*gorm.Statement); ok && isFencedUpsert(stmt) {
			c.Expression = sameRecord(stmt, c.Expression)
		}
		build(c, builder)
	}
}

func isFencedUpsert(stmt *gorm.Statement) bool {
	by, ok := stmt.Settings.Load(upsertSetting)
	return ok && by == stmt // else GORM has handed it on to an association
}

// sameRecord adds to the assignments that the row found has the primary key of the one to
// be inserted. The server evaluates the subquery, which is an error, only where it hasn't.
func sameRecord(stmt *gorm.Statement, expr clause.Expression) clause.Expression {
	conflict, ok := expr.(clause.OnConflict)
	if !ok || conflict.DoNothing {
		return expr
	}
	var updates clause.Set
	for _, key := range stmt.Schema.PrimaryFields {
		column := clause.Column{Name: key.DBName}
		for _, assignment := range conflict.DoUpdates {
			if assignment.Value != (clause.Column{Table: "excluded", Name: key.DBName}) && names(assignment.Column.Name, key.DBName) {
				_ = stmt.AddError(unidentified(stmt, fmt.Sprintf("it makes another record of it, by %q", assignment.Column.Name)))
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
