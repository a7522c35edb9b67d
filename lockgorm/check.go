package lockgorm

import (
	"database/sql"
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/txlock"
)

// check looks at the namespace and the models that the plugin was given.
func (p *Plugin) check(db *gorm.DB) error {
	if err := txlock.NewFamily[int64]("order", p.family...).Key(1).Validate(); err != nil {
		return err
	}
	if p.most < 1 {
		return fmt.Errorf("%w: AtMostRows(%d): it must be positive", txlock.ErrInvalidOption, p.most)
	}
	for _, model := range p.checks {
		stmt := &gorm.Statement{DB: db}
		if err := stmt.Parse(model); err != nil {
			return fmt.Errorf("lockgorm: Check needs models such as &Order{}, got %T: %w", model, err)
		}
		if err := p.checkModel(db, stmt.Schema); err != nil {
			return err
		}
	}
	return nil
}

// checkModel looks at one model and the columns of its table.
func (p *Plugin) checkModel(db *gorm.DB, model *schema.Schema) error {
	version, err := versionOf(model)
	if err != nil {
		return err
	}
	if version == nil && !isLockerModel(model) {
		return fmt.Errorf("%w: %s names no keys and has no Version: give its primary key the tag %s:\"...\", or write a method LockKeys", txlock.ErrInvalidKey, model.Name, tagName)
	}
	byTag := isTagged(model)
	if byTag && p.tagOf(model).err != nil {
		return p.tagOf(model).err
	}
	fields := slices.Clone(model.PrimaryFields)
	if version != nil {
		fields = append(fields, version)
	}
	if db.DryRun {
		return nil
	}
	for _, field := range fields {
		c, err := lookUp(db.Statement.Quote(model.Table), db.Statement.Quote(field.DBName), func(text string) (*sql.Rows, error) {
			return db.Session(&gorm.Session{NewDB: true}).Model(reflect.New(model.ModelType).Interface()).Raw(text).Rows()
		})
		switch {
		case err != nil:
			return fmt.Errorf("lockgorm: %w (Check inspects %s: create the tables before db.Use)", err, model.Name)
		case field == version:
			if c.Kind != "BIGINT" && c.Kind != "UNSIGNED BIGINT" {
				return fmt.Errorf("%w: the column %s of %s is a %s, in which versions have no room: make it BIGINT UNSIGNED NOT NULL DEFAULT 1", ErrVersion, field.DBName, model.Name, c.Kind)
			}
		case byTag:
			if why := c.Misfit(field.IndirectFieldType, p.tagOf(model).fold); why != "" {
				return wrongTag(model, fmt.Errorf("the column %s %s", field.DBName, why))
			}
		}
	}
	return nil
}

// Unlocked names dialects on which nothing is locked, as gorm.Dialector.Name returns them: for
// services whose unit tests run on another database.
//
//	db.Use(lockgorm.New(lockgorm.Unlocked("sqlite")))
//
// There the plugin lets all writes through, and reports that once in GORM's logger. The clauses of
// this package are accepted, Lock and AssertLocked return at once, as in a DryRun session, and
// Transaction and Optimistic run their function in a transaction. Versions are not compared. Join,
// Once, leases and functions that take a *sql.DB need MySQL or MariaDB.
//
// On a dialect that is neither MySQL nor named, db.Use returns txlock.ErrInvalidOption, also if
// Unlocked names "mysql", which is also the dialect of MariaDB. The default is none.
func Unlocked(dialects ...string) Option {
	return func(p *Plugin) { p.unlocked = append(p.unlocked, dialects...) }
}

const locking = "mysql" // the dialect on which there are locks

// checkDialect reports whether there are locks, and returns an error if nobody has said that there
// need be none.
func (p *Plugin) checkDialect(db *gorm.DB) (locks bool, err error) {
	switch name := db.Name(); {
	case slices.Contains(p.unlocked, locking):
		return false, fmt.Errorf("%w: lockgorm.Unlocked(%q) would lock nothing on MySQL and MariaDB: leave the plugin out there", txlock.ErrInvalidOption, locking)
	case name == locking:
		return true, nil
	case !slices.Contains(p.unlocked, name):
		return false, fmt.Errorf("%w: there are no locks on %s: use MySQL or MariaDB, or name the dialect by lockgorm.New(lockgorm.Unlocked(%q)), for unit tests in which nothing is locked", txlock.ErrInvalidOption, name, name)
	default:
		db.Logger.Warn(db.Statement.Context, "lockgorm: nothing is locked on %s", name)
		return false, nil
	}
}

// sendsNothing reports whether the functions of this package send nothing by a handle: in a DryRun
// session, and on a dialect of Unlocked.
func sendsNothing(tx *gorm.DB) bool {
	if tx == nil || tx.Config == nil {
		return false
	}
	p, ok := tx.Plugins[(*Plugin)(nil).Name()].(*Plugin)
	return tx.DryRun || ok && slices.Contains(p.unlocked, tx.Name())
}
