// Package models has models for pools of several naming strategies.
package models

import "gorm.io/gorm/schema"

// Order has the table that a naming strategy makes of its name.
type Order struct {
	ID int64 `lockstep:"order"`
}

// SalesPerson has two words, and an irregular plural.
type SalesPerson struct {
	ID int64 `lockstep:"person"`
}

// Cart names its table.
type Cart struct {
	ID int64 `lockstep:"cart"`
}

// TableName is the table's.
func (Cart) TableName() string { return "shop_carts" }

// Bill names its table, and its database.
type Bill struct {
	ID int64 `lockstep:"bill"`
}

// TableName is the table's.
func (*Bill) TableName(schema.Namer) string { return "books.bills" }

// Refund has a table that only the running program knows.
type Refund struct {
	ID int64 `lockstep:"refund"`
}

// TableName is the table's.
func (Refund) TableName(namer schema.Namer) string { return namer.TableName("Return") }
