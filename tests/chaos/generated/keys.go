// Package generated has queries as sqlc makes them, with the locks that lockgen adds.
package generated

import (
	_ "embed"

	"github.com/dca00107/lockstep/txlock"
)

// Schema makes the table.
//
//go:embed schema.sql
var Schema string

// Records has the keys of numbers: "generated:7" is the key of record 7.
//
//lockstep:table numbers(id)
var Records = txlock.NewFamily[int64]("generated")
