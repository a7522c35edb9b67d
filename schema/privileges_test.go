package schema_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// grants gives privileges to the application's user; %s is the account.
func grants(t *testing.T, db *testdb.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		for _, host := range []string{"%", "localhost"} {
			db.Exec(t, fmt.Sprintf(statement, "'"+db.Config().User+"'@'"+host+"'"))
		}
	}
}

// TestCheckFindsMissingPrivileges revokes privileges on tables and columns, and grants them by wildcard and by role.
func TestCheckFindsMissingPrivileges(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		install(t, db)
		grants(t, db, "GRANT SELECT ON lockstep_locks TO %s", "GRANT SELECT ON lockstep_centers TO %s", "GRANT SELECT ON lockstep_once TO %s", "GRANT SELECT ON lockstep_jobs TO %s",
			"GRANT EXECUTE ON `"+db.Name()+"`.* TO %s")
		demand(t, schema.Check(t.Context(), db.Connect(t)), errors.Join(schema.ErrTable, schema.ErrPrivilege),
			"lockstep_leases is missing in this database, or this user may not see it", "grant SELECT, INSERT, UPDATE, DELETE")
		grants(t, db, "GRANT SELECT ON lockstep_leases TO %s")
		pool := db.Connect(t)
		demand(t, schema.Check(t.Context(), pool), schema.ErrPrivilege,
			"GRANT INSERT, UPDATE, DELETE ON `"+db.Name()+"`.lockstep_locks TO '"+db.Config().User+"'@'",
			"GRANT INSERT, UPDATE ON `"+db.Name()+"`.lockstep_centers TO '", "GRANT INSERT, UPDATE, DELETE ON `"+db.Name()+"`.lockstep_leases TO '", "GRANT INSERT, UPDATE, DELETE ON `"+db.Name()+"`.lockstep_once TO '", "GRANT INSERT, UPDATE, DELETE ON `"+db.Name()+"`.lockstep_jobs TO '")
		check(t, schema.Install(t.Context(), pool)) // of what is there needs no privilege
		db.Exec(t, "DELETE FROM lockstep_centers WHERE slot = 5")
		demand(t, schema.Install(t.Context(), pool), schema.ErrPrivilege, `"INSERT IGNORE INTO lockstep_centers`)
		install(t, db)

		grants(t, db, "GRANT INSERT, UPDATE, DELETE ON lockstep_leases TO %s", "GRANT INSERT, UPDATE, DELETE ON lockstep_once TO %s", "GRANT INSERT, UPDATE, DELETE ON lockstep_jobs TO %s", "GRANT INSERT, UPDATE ON lockstep_centers TO %s",
			"GRANT INSERT, DELETE, UPDATE (token, owner) ON lockstep_locks TO %s")
		demand(t, schema.Check(t.Context(), pool), schema.ErrPrivilege, "GRANT UPDATE ON `"+db.Name()+"`.lockstep_locks TO '")
		grants(t, db, "GRANT UPDATE (conn_id, locked_us) ON lockstep_locks TO %s")
		demand(t, schema.Check(t.Context(), pool), nil)

		grants(t, db, "REVOKE ALL PRIVILEGES, GRANT OPTION FROM %s", "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON `lockstep\\_t\\_%%`.* TO %s")
		wildcard := db.Connect(t) // some privileges are read only when a connection begins
		demand(t, schema.Check(t.Context(), wildcard), nil)

		grants(t, db, "REVOKE ALL PRIVILEGES, GRANT OPTION FROM %s")
		role := db.Config().User + "_role"
		db.Exec(t, "CREATE ROLE "+role)
		defer func() {
			check(t, testdb.Err(db.Admin().ExecContext(context.WithoutCancel(t.Context()), "DROP ROLE "+role)))
		}()
		for _, table := range []string{"locks", "centers", "leases", "once", "jobs"} {
			db.Exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON lockstep_"+table+" TO "+role)
		}
		db.Exec(t, "GRANT EXECUTE ON `"+db.Name()+"`.* TO "+role)
		byDefault := map[testdb.Engine]string{testdb.MySQL: "SET DEFAULT ROLE " + role + " TO %s", testdb.MariaDB: "SET DEFAULT ROLE " + role + " FOR %s"}[engine]
		grants(t, db, "GRANT "+role+" TO %s", byDefault)
		byRole := db.Connect(t)
		demand(t, schema.Check(t.Context(), byRole), nil)
		testdb.Equal(t, "rows that Check has made", number(t, db.Admin(), "SELECT COUNT(*) FROM lockstep_locks"), 0)
	})
}

// TestFix proves that Fix has the statements of all findings, in their order, then the installation, and
// then the GRANTs on tables that may be missing.
func TestFix(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		install(t, db)
		db.Exec(t, "DROP TABLE lockstep_jobs")
		db.Exec(t, "ALTER TABLE lockstep_once ENGINE = MyISAM")
		db.Exec(t, "DROP TABLE lockstep_leases")
		grants(t, db, "GRANT SELECT ON lockstep_centers TO %s", "GRANT SELECT ON lockstep_once TO %s",
			"GRANT SELECT, DELETE ON lockstep_locks TO %s", "GRANT EXECUTE ON `"+db.Name()+"`.* TO %s")
		pool := db.Connect(t)
		var account string
		check(t, pool.QueryRowContext(t.Context(), "SELECT CURRENT_USER()").Scan(&account))
		account = "'" + strings.ReplaceAll(account, "@", "'@'") + "'"
		want := strings.Join([]string{
			"ALTER TABLE lockstep_once ENGINE = InnoDB",
			"GRANT INSERT, UPDATE ON `" + db.Name() + "`.lockstep_locks TO " + account,
			"GRANT INSERT, UPDATE ON `" + db.Name() + "`.lockstep_centers TO " + account,
			"lockstep install",
			"GRANT SELECT, INSERT, UPDATE, DELETE ON `" + db.Name() + "`.lockstep_leases TO " + account,
			"GRANT SELECT, INSERT, UPDATE, DELETE ON `" + db.Name() + "`.lockstep_jobs TO " + account,
		}, "; ")
		testdb.Equal(t, "Fix", schema.Fix(schema.Check(t.Context(), pool)), want)
		db.Exec(t, "DROP TABLE lockstep_once")
		for what, err := range map[string]error{"Install": schema.Install(t.Context(), pool), "InstallViews": schema.InstallViews(t.Context(), pool)} {
			fix := schema.Fix(err)
			if !errors.Is(err, schema.ErrPrivilege) || !strings.HasPrefix(fix, "GRANT CREATE") || !strings.Contains(fix, account) || !strings.Contains(err.Error(), ": "+fix+": ") {
				t.Errorf("%s: %v, fix %q", what, err, fix)
			}
		}
		testdb.Equal(t, "Fix of no finding", schema.Fix(nil)+schema.Fix(errors.New("another")), "")
	})
}

// TestFixOfUnseenTables: an administrator who does what Fix says, in its order, ends the findings on tables
// that the user doesn't see, whether they are there or not. A GRANT is in it only where the user needs one.
func TestFixOfUnseenTables(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		do := func(fix string) {
			for statement := range strings.SplitSeq(fix, "; ") {
				if statement == "lockstep install" {
					install(t, db)
				} else {
					db.Exec(t, statement)
				}
			}
		}
		checked := func() error { return schema.Check(t.Context(), db.Connect(t)) } // anew: a connection keeps the privileges of its database
		install(t, db)
		db.Exec(t, "DROP TABLE lockstep_leases")
		grants(t, db, "GRANT SELECT ON lockstep_locks TO %s", "GRANT EXECUTE ON `"+db.Name()+"`.* TO %s")
		before := checked()
		demand(t, before, errors.Join(schema.ErrTable, schema.ErrPrivilege), "GRANT SELECT, INSERT, UPDATE ON `"+db.Name()+"`.lockstep_centers TO '")
		do(schema.Fix(before))
		demand(t, checked(), nil)

		db.Exec(t, "DROP TABLE lockstep_leases")
		grants(t, db, "REVOKE ALL PRIVILEGES, GRANT OPTION FROM %s", "GRANT SELECT, INSERT, UPDATE, EXECUTE ON `"+db.Name()+"`.* TO %s", "GRANT DELETE ON lockstep_locks TO %s", "GRANT DELETE ON lockstep_once TO %s", "GRANT DELETE ON lockstep_jobs TO %s")
		before = checked()
		demand(t, before, errors.Join(schema.ErrTable, schema.ErrPrivilege))
		fix := schema.Fix(before)
		testdb.ErrorIf(t, !strings.HasPrefix(fix, "lockstep install; GRANT DELETE ON `"+db.Name()+"`.lockstep_leases TO '") || strings.Count(fix, "; ") != 1, "Fix: %s", fix)
		do(fix)
		demand(t, checked(), nil)

		db.Exec(t, "DROP TABLE lockstep_leases")
		grants(t, db, "GRANT DELETE ON `"+db.Name()+"`.* TO %s")
		before = checked()
		demand(t, before, schema.ErrTable)
		testdb.Equal(t, "Fix for a user who may use the table", schema.Fix(before), "lockstep install")
	})
}

// TestWrongPassword proves that a user who isn't let in is not told to grant something.
func TestWrongPassword(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		wrong := testdb.Open(t, engine).Connect(t, func(c *mysql.Config) { c.Passwd += "x" })
		for what, err := range map[string]error{"Check": schema.Check(t.Context(), wrong), "Install": schema.Install(t.Context(), wrong)} {
			_, missing := schema.MissingPrivilege(err)
			var server *mysql.MySQLError
			testdb.ErrorIf(t, !errors.As(err, &server) || server.Number != 1045 || missing || errors.Is(err, schema.ErrPrivilege), "%s: %v, privilege %t", what, err, missing)
		}
	})
}

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
	text := testdb.Got(fs.ReadFile(schema.FS, "mysql/0005_procedures.sql"))(t)
	got := testdb.Got(schema.Procedures())(t)
	testdb.Equal(t, "statements, two for each procedure", len(got), 2*len(procedures))
	for i := 0; i+1 < len(got); i += 2 {
		name, ok := strings.CutPrefix(got[i], "DROP PROCEDURE IF EXISTS ")
		testdb.ErrorIf(t, !ok || !strings.HasPrefix(got[i+1], "CREATE PROCEDURE "+name+"("), "%s is followed by %s", got[i], got[i+1])
		testdb.ErrorIf(t, strings.Contains(got[i+1], "--") || strings.Contains(got[i+1], "\""),
			"%s has a comment, which some tools cut out, or a quote, which the server may read otherwise", name)
	}
	rest := string(text)
	for _, statement := range got {
		rest = strings.Replace(rest, statement+";\n", "", 1)
	}
	testdb.Equal(t, "lines with +goose, two for each statement: goose takes any other for an error", strings.Count(rest, "+goose"), 2*len(got))
	testdb.Equal(t, "left over", regexp.MustCompile(`(?m)^(--.*)?\n`).ReplaceAllString(rest, ""), "")
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
	testdb.Equal(t, "procedures", int(number(t, db.Admin(), countProcedures)), len(procedures))
	for _, name := range procedures {
		grants(t, db, "GRANT EXECUTE ON PROCEDURE "+name+" TO %s") // which DROP would revoke
	}
	const granted = "SELECT COUNT(*) FROM mysql.procs_priv WHERE db = DATABASE()"
	before := number(t, db.Admin(), granted)
	install(t, db)
	testdb.Equal(t, "grants, which are lost where Install has made the procedures anew", number(t, db.Admin(), granted), before)
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
	tx := testdb.Got(db.Admin().BeginTx(t.Context(), nil))(t)
	defer func() { _ = tx.Rollback() }()
	check(t, testdb.Err(tx.ExecContext(t.Context(), "CALL lockstep_version_1()")))
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
	text := testdb.Got(fs.ReadFile(schema.FS, "mysql/0005_procedures.sql"))(t)
	several := db.ConnectAdmin(t, func(c *mysql.Config) { c.MultiStatements = true })
	check(t, testdb.Err(several.ExecContext(t.Context(), string(text))))
	demand(t, schema.Check(t.Context(), db.Admin()), nil)
}
