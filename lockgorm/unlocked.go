package lockgorm

import (
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/txlock"
)

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
