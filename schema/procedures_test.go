package schema_test

import (
	"database/sql"
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// procedures are the names of the procedures.
var procedures = []string{
	"lockstep_begin_1", "lockstep_compare_1", "lockstep_lock_1", "lockstep_lock_all_1", "lockstep_lock_read_2", "lockstep_once_1",
	"lockstep_program_2", "lockstep_raise_1", "lockstep_share_1", "lockstep_try_1", "lockstep_version_1",
}

const countProcedures = "SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = DATABASE() AND routine_name LIKE 'lockstep\\_%'"

// TestProceduresOfFile proves that nothing in the file is lost on the way to Procedures, and
// that each procedure is dropped before it is made.
func TestProceduresOfFile(t *testing.T) {
	t.Parallel()
	text, err := fs.ReadFile(schema.FS, "mysql/0005_procedures.sql")
	check(t, err)
	got, err := schema.Procedures()
	check(t, err)
	equal(t, "statements, two for each procedure", len(got), 2*len(procedures))
	for i := 0; i+1 < len(got); i += 2 {
		name, ok := strings.CutPrefix(got[i], "DROP PROCEDURE IF EXISTS ")
		if !ok || !strings.HasPrefix(got[i+1], "CREATE PROCEDURE "+name+"(") {
			t.Errorf("%s is followed by %s", got[i], got[i+1])
		}
		if strings.Contains(got[i+1], "--") || strings.Contains(got[i+1], "\"") {
			t.Errorf("%s has a comment, which some tools cut out, or a quote, which the server may read otherwise", name)
		}
	}
	rest := string(text)
	for _, statement := range got {
		rest = strings.Replace(rest, statement+";\n", "", 1)
	}
	equal(t, "lines with +goose, two for each statement: goose takes any other for an error", strings.Count(rest, "+goose"), 2*len(got))
	equal(t, "left over", regexp.MustCompile(`(?m)^(--.*)?\n`).ReplaceAllString(rest, ""), "")
}

// TestInstallProcedures installs procedures, on one database, as a user who may not make them or not call
// them, and as one who may, over those of other versions, and as one text.
func TestInstallProcedures(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine != testdb.MariaDB {
			db := testdb.Fresh(t, engine)
			withoutRoutines(t, db)
			replacesOthers(t, db)
			besideCaller(t, db)
			atOnce(t, db)
		}
	}
}

// withoutRoutines proves that Install makes the tables, and Check tells how to get the procedures, if the
// user may not make them or not call them.
func withoutRoutines(t *testing.T, db *testdb.DB) {
	t.Helper()
	grants(t, db, "GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON `"+db.Name()+"`.* TO %s")
	user := db.Connect(t)
	check(t, schema.Install(t.Context(), user))
	execute := "GRANT EXECUTE ON `" + db.Name() + "`.* TO '" + db.Config().User + "'@'"
	demand(t, schema.Check(t.Context(), user), schema.ErrProcedures, execute)
	install(t, db)
	demand(t, schema.Check(t.Context(), user), schema.ErrProcedures, execute)
	grants(t, db, "GRANT EXECUTE ON `"+db.Name()+"`.* TO %s")
	granted := db.Connect(t)
	demand(t, schema.Check(t.Context(), granted), nil)
	db.Exec(t, "DROP PROCEDURE lockstep_version_1")
	demand(t, schema.Check(t.Context(), granted), schema.ErrProcedures, "lockstep_version_1 is missing")
	grants(t, db, "GRANT CREATE ROUTINE ON `"+db.Name()+"`.* TO %s")
	check(t, schema.Install(t.Context(), db.Connect(t)))
	demand(t, schema.Check(t.Context(), granted), nil)
}

// replacesOthers proves that Install leaves the procedures that are there, and replaces others, by several
// processes at once.
func replacesOthers(t *testing.T, db *testdb.DB) {
	t.Helper()
	equal(t, "procedures", int(number(t, db.Admin(), countProcedures)), len(procedures))
	for _, name := range procedures {
		grants(t, db, "GRANT EXECUTE ON PROCEDURE "+name+" TO %s") // which DROP would revoke
	}
	const granted = "SELECT COUNT(*) FROM mysql.procs_priv WHERE db = DATABASE()"
	before := number(t, db.Admin(), granted)
	install(t, db)
	equal(t, "grants, which are lost where Install has made the procedures anew", number(t, db.Admin(), granted), before)
	db.Exec(t, "DROP PROCEDURE lockstep_lock_1")
	db.Exec(t, "CREATE PROCEDURE lockstep_lock_1() SELECT 'of another version'")
	db.Exec(t, "DROP PROCEDURE lockstep_try_1")
	db.Exec(t, "DROP PROCEDURE lockstep_raise_1")
	db.Exec(t, "CREATE PROCEDURE lockstep_raise_1(p_name VARBINARY(255), p_slot INT UNSIGNED, p_owner VARBINARY(255), p_held BIGINT UNSIGNED) SELECT 'of another version'")
	demand(t, schema.Check(t.Context(), db.Admin()), schema.ErrProcedures,
		"lockstep_try_1 is missing", "lockstep_raise_1 is not that of this version", "run schema.Install as a user with CREATE ROUTINE and ALTER ROUTINE")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { demand(t, schema.Install(t.Context(), db.Admin()), nil) })
	}
	wg.Wait()
	demand(t, schema.Check(t.Context(), db.Admin()), nil)
}

// besideCaller replaces a procedure that an open transaction has called, which the server doesn't allow:
// Install doesn't wait.
func besideCaller(t *testing.T, db *testdb.DB) {
	t.Helper()
	db.Exec(t, "DROP PROCEDURE lockstep_version_1")
	db.Exec(t, "CREATE PROCEDURE lockstep_version_1() SELECT 'of another version'")
	tx, err := db.Admin().BeginTx(t.Context(), nil)
	check(t, err)
	defer func() { _ = tx.Rollback() }()
	check(t, second(tx.ExecContext(t.Context(), "CALL lockstep_version_1()")))
	install(t, db)
	demand(t, schema.Check(t.Context(), db.Admin()), schema.ErrProcedures, "lockstep_version_1 is not that of this version")
	check(t, tx.Rollback())
	install(t, db)
	demand(t, schema.Check(t.Context(), db.Admin()), nil)
}

// atOnce sends the whole file as one text, as golang-migrate does.
func atOnce(t *testing.T, db *testdb.DB) {
	t.Helper()
	for _, name := range procedures {
		db.Exec(t, "DROP PROCEDURE "+name)
	}
	text, err := fs.ReadFile(schema.FS, "mysql/0005_procedures.sql")
	check(t, err)
	several, err := sql.Open("mysql", db.AdminDSN(func(c *mysql.Config) { c.MultiStatements = true }))
	check(t, err)
	defer func() { _ = several.Close() }()
	check(t, second(several.ExecContext(t.Context(), string(text))))
	demand(t, schema.Check(t.Context(), db.Admin()), nil)
}
