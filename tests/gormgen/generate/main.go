// Command generate writes package query by gorm.io/gen, without a server. With -check it
// only compares what it would write: make generate, make verify.
package main

import (
	"bytes"
	"database/sql"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gen"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/tests/gormgen/shop"
)

func main() {
	check := flag.Bool("check", false, "compare the generated code, and write nothing")
	flag.Parse()
	run := func() error { return generate("query") }
	if *check {
		run = compare
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// generate writes the package into a directory of its name.
func generate(dir string) error {
	connector, err := driver.NewConnector(driver.NewConfig())
	if err != nil {
		return err
	}
	dialector := mysql.New(mysql.Config{Conn: sql.OpenDB(connector), SkipInitializeWithVersion: true})
	db, err := gorm.Open(dialector, &gorm.Config{DisableAutomaticPing: true})
	if err != nil {
		return err
	}
	g := gen.NewGenerator(gen.Config{OutPath: dir, Mode: gen.WithQueryInterface})
	g.UseDB(db)
	g.ApplyBasic(shop.Order{}, shop.Item{}, shop.Account{})
	g.Execute() // panics if it can't
	return nil
}

// compare generates into a temporary directory.
func compare() error {
	dir, err := os.MkdirTemp("", "gormgen")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := generate(filepath.Join(dir, "query")); err != nil {
		return err
	}
	made, err := filepath.Glob(filepath.Join(dir, "query", "*.go"))
	if err != nil {
		return err
	}
	for _, path := range made {
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		have, err := os.ReadFile(filepath.Join("query", filepath.Base(path)))
		if err != nil || !bytes.Equal(want, have) {
			return fmt.Errorf("tests/gormgen/query/%s is stale: run make generate", filepath.Base(path))
		}
	}
	return nil
}
