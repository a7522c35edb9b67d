// Package gormgen tests lockgorm with queries that gorm.io/gen has generated.
package gormgen
