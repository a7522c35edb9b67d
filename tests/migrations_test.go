package tests

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/mysql"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/pressly/goose/v3"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// onEmptyDatabases runs a test in a database without tables, on each server, with the files
// of the DDL that docs/how-to/install.md names for it. Afterwards all must be there.
func onEmptyDatabases(t *testing.T, test func(t *testing.T, db *testdb.DB, files []string)) {
	t.Helper()
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		files := []string{"0001_lockstep.sql", "0002_centers.sql", "0003_once.sql", "0004_jobs.sql"}
		if engine == testdb.MySQL {
			files = append(files, "mysql/0005_procedures.sql")
		}
		test(t, db, files)
		if err := schema.Check(t.Context(), db.Admin()); err != nil {
			t.Error(err)
		}
	})
}

// ddl returns a file of the DDL.
func ddl(t *testing.T, name string) string {
	t.Helper()
	text, err := fs.ReadFile(schema.FS, name)
	fatal(t, err)
	return string(text)
}

// named fails the test unless docs/how-to/install.md has these words.
func named(t *testing.T, words ...string) {
	t.Helper()
	text, err := os.ReadFile("../docs/how-to/install.md")
	fatal(t, err)
	for _, w := range words {
		if !strings.Contains(string(text), "`"+w+"`") {
			t.Errorf("docs/how-to/install.md doesn't say `%s`", w)
		}
	}
}

func TestGoose(t *testing.T) {
	const first = "-- +goose Up"
	named(t, first)
	onEmptyDatabases(t, func(t *testing.T, db *testdb.DB, files []string) {
		dir := fstest.MapFS{}
		for _, name := range files {
			dir[strings.TrimPrefix(name, "mysql/")] = &fstest.MapFile{Data: []byte(first + "\n" + ddl(t, name))}
		}
		provider, err := goose.NewProvider(goose.DialectMySQL, db.Admin(), dir, goose.WithDisableGlobalRegistry(true))
		fatal(t, err)
		done, err := provider.Up(t.Context())
		if err != nil || len(done) != len(files) {
			t.Errorf("%d migrations, %v, want %d", len(done), err, len(files))
		}
	})
}

func TestGolangMigrate(t *testing.T) {
	ups := []string{"000010_lockstep.up.sql", "000011_lockstep_centers.up.sql", "000012_lockstep_once.up.sql", "000013_lockstep_jobs.up.sql", "000014_lockstep_procedures.up.sql"}
	downs := map[string]string{
		"000010_lockstep.down.sql":      "DROP TABLE lockstep_locks, lockstep_centers, lockstep_leases;",
		"000012_lockstep_once.down.sql": "DROP TABLE lockstep_once;",
		"000013_lockstep_jobs.down.sql": "DROP TABLE lockstep_jobs;",
	}
	named(t, ups...)
	for _, text := range downs {
		named(t, text)
	}
	onEmptyDatabases(t, func(t *testing.T, db *testdb.DB, files []string) {
		dir := fstest.MapFS{}
		for i, name := range files {
			dir[ups[i]] = &fstest.MapFile{Data: []byte(ddl(t, name))}
		}
		for name, text := range downs {
			dir[name] = &fstest.MapFile{Data: []byte(text)}
		}
		source, err := iofs.New(dir, ".")
		fatal(t, err)
		url := "mysql://" + db.AdminDSN(func(c *mysql.Config) { c.MultiStatements = true })
		m, err := migrate.NewWithSourceInstance("iofs", source, url)
		fatal(t, err)
		defer func() {
			if sourceErr, err := m.Close(); sourceErr != nil || err != nil {
				t.Error(sourceErr, err)
			}
		}()
		for _, step := range []func() error{m.Up, m.Down, m.Up} {
			fatal(t, step())
		}
	})
}

// TestAtlas has Atlas read the files as it reads those of a migration directory.
func TestAtlas(t *testing.T) {
	const first = "-- atlas:delimiter -- +goose StatementEnd"
	named(t, first)
	onEmptyDatabases(t, func(t *testing.T, db *testdb.DB, files []string) {
		for _, name := range files {
			text := ddl(t, name)
			if strings.HasPrefix(name, "mysql/") {
				text = first + "\n\n" + text
			}
			statements, err := atlas.NewLocalFile(name, []byte(text)).Stmts()
			fatal(t, err)
			for _, s := range statements {
				if _, err := db.Admin().ExecContext(t.Context(), s); err != nil {
					t.Errorf("%s: %q: %v", name, s, err)
				}
			}
		}
	})
}
