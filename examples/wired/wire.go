//go:build wireinject

package wired

import (
	"github.com/google/wire"
	"gorm.io/gorm"
)

// NewProgram is generated from this.
func NewProgram(db *gorm.DB) (*Program, func(), error) {
	wire.Build(Locks)
	return nil, nil, nil
}
