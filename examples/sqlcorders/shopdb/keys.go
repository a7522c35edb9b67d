// Package shopdb contains the queries of the shop, and the keys of their locks.
package shopdb

import "github.com/dca00107/lockstep/txlock"

//go:generate go tool lockgen

// Products makes the keys of products: "product:7" is the key of product 7.
//
//lockstep:table products(id)
var Products = txlock.NewFamily[int64]("product")
