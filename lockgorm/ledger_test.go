package lockgorm_test

import (
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Ledger has keys and an embedded version, and is deleted softly.
type Ledger struct {
	ID int64
	N  int64
	Kept
}

// Kept is what ledgers have in common.
type Kept struct {
	DeletedAt gorm.DeletedAt
	Version   lockgorm.Version
}

var ledgers = txlock.NewFamily[int64]("gorm-ledger")

func (l *Ledger) LockKeys(*gorm.DB) ([]txlock.Key, error) { return ledgers.Keys(l.ID), nil }

func (l *Ledger) AfterUpdate(tx *gorm.DB) error { return hooked(tx, l.ID) }

func init() {
	columns["Ledger"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0, deleted_at DATETIME(3), " + versionColumn
}
