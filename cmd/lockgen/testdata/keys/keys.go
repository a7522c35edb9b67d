// Package keys has a family that several programs share.
package keys

import "github.com/dca00107/lockstep/txlock"

// Products locks the rows of products.
var Products = txlock.NewFamily[string]("product", txlock.Fold("utf8mb4_bin"))
