package lockgorm

import (
	"database/sql"
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/txlock"
)

// check looks at the namespace and the models that the plugin was given.
func (p *Plugin) check(db *gorm.DB) error {
	if err := txlock.NewFamily[int64]("order", p.family...).Key(1).Validate(); err != nil {
		return err
	}
	for _, model := range p.checks {
		stmt := &gorm.Statement{DB: db}
		if err := stmt.Parse(model); err != nil {
			return fmt.Errorf("lockgorm: Check needs models such as &Order{}, got %T: %w", model, err)
		}
		if err := p.checkModel(db, stmt.Schema); err != nil {
			return err
		}
	}
	return nil
}

// checkModel looks at one model and the columns of its table.
func (p *Plugin) checkModel(db *gorm.DB, model *schema.Schema) error {
	version, err := versionOf(model)
	if err != nil {
		return err
	}
	if version == nil && !isLockerModel(model) {
		return fmt.Errorf("%w: %s names no keys and has no Version: give its primary key the tag %s:\"...\", or write a method LockKeys", txlock.ErrInvalidKey, model.Name, tagName)
	}
	byTag := isTagged(model)
	if byTag && p.tagOf(model).err != nil {
		return p.tagOf(model).err
	}
	fields := slices.Clone(model.PrimaryFields)
	if version != nil {
		fields = append(fields, version)
	}
	if db.DryRun {
		return nil
	}
	for _, field := range fields {
		c, err := lookUp(db.Statement.Quote(model.Table), db.Statement.Quote(field.DBName), func(text string) (*sql.Rows, error) {
			return db.Session(&gorm.Session{NewDB: true}).Model(reflect.New(model.ModelType).Interface()).Raw(text).Rows()
		})
		switch {
		case err != nil:
			return fmt.Errorf("lockgorm: %w (Check inspects %s: create the tables before db.Use)", err, model.Name)
		case field == version:
			if c.Kind != "BIGINT" && c.Kind != "UNSIGNED BIGINT" {
				return fmt.Errorf("%w: the column %s of %s is a %s, in which versions have no room: make it BIGINT UNSIGNED NOT NULL DEFAULT 1", ErrVersion, field.DBName, model.Name, c.Kind)
			}
		case byTag:
			if why := c.Misfit(field.IndirectFieldType, p.tagOf(model).fold); why != "" {
				return wrongTag(model, fmt.Errorf("the column %s %s", field.DBName, why))
			}
		}
	}
	return nil
}
