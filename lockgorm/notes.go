package lockgorm

import "gorm.io/gorm"

// noted is what is noted of a statement.
type noted[T any] struct {
	of *gorm.Statement
	it T
}

// note notes something of this very statement, for noteOf: GORM passes settings on to the
// statements of associations.
func note[T any](stmt *gorm.Statement, setting string, it T) {
	stmt.Settings.Store(setting, noted[T]{stmt, it})
}

// noteOf returns what is noted of this very statement, or the zero value.
func noteOf[T any](stmt *gorm.Statement, setting string) (it T) {
	value, _ := stmt.Settings.Load(setting)
	if n, ok := value.(noted[T]); ok && n.of == stmt {
		return n.it
	}
	return it
}
