// Package sharding tests lockgorm beside gorm.io/sharding, which spreads the rows of a model
// over several tables, and gorm.io/plugin/dbresolver, which spreads statements over several
// databases. The lock of a row doesn't depend on its table.
package sharding
