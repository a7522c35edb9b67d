// Package shop has the models of which the generated queries are.
package shop

import "github.com/dca00107/lockstep/lockgorm"

// Order is locked by its tag, and has Items.
type Order struct {
	ID    int64 `lockstep:"gen-order"`
	N     int64
	Items []Item
}

// Item belongs to an order and names no key.
type Item struct {
	ID      int64
	OrderID int64
	N       int64
}

// Account has a version.
type Account struct {
	ID      int64
	Balance int64
	Version lockgorm.Version
}
