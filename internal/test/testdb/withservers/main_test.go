package main

import (
	"net"
	"net/http/httptest"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

var must = testdb.Must

func TestMain(m *testing.M) { testdb.Main(m) }

// The command gets the DSN that was given for its engine, and no other.
func TestRunKeepsDSN(t *testing.T) {
	testdb.NeedsServer(t)
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			dsn := testdb.Shared(t, engine).Config().FormatDSN()
			for _, each := range []testdb.Engine{testdb.MariaDB, testdb.MySQL} {
				t.Setenv(each.DSNVariable(), dsn)
			}
			code, err := run(string(engine), false, []string{"sh", "-c", `test "$LOCKSTEP_MARIADB_DSN$LOCKSTEP_MYSQL_DSN" = "$0"`, dsn})
			testdb.ErrorIf(t, code != 0 || err != nil, "run = %d, %v: the DSN that was given is not kept alone", code, err)
		})
	}
}

// The command isn't run, and the error names the variable.
func TestRunRefusesDSN(t *testing.T) {
	testdb.NeedsServer(t)
	listener := testdb.Got(net.Listen("tcp", "127.0.0.1:0"))(t)
	dead := listener.Addr().String()
	must(t, listener.Close())
	silent := httptest.NewServer(nil) // until it is asked by HTTP
	t.Cleanup(silent.Close)
	for i, engine := range testdb.Engines() {
		other := testdb.MySQL
		if engine == testdb.MySQL {
			other = testdb.MariaDB
		}
		given := testdb.Shared(t, engine).Config()
		wrong := given.Clone()
		wrong.Passwd = "wrong"
		tests := map[string]string{
			"nonsense": "invalid DSN", "root@tcp(" + dead + ")/": "connection refused",
			wrong.FormatDSN(): "Access denied", given.FormatDSN(): "is not " + string(other),
		}
		if i == 0 { // ten seconds
			tests["root@tcp("+silent.Listener.Addr().String()+")/"] = "no server that can be used"
		}
		for dsn, want := range tests {
			t.Setenv(other.DSNVariable(), dsn)
			code, err := run(string(other), false, []string{"true"})
			testdb.Fails(t, dsn, err, other.DSNVariable(), want)
			testdb.ErrorIf(t, code == 0, "run with %q: 0", dsn)
		}
	}
}

func TestRunFails(t *testing.T) {
	testdb.NeedsServer(t)
	engine := testdb.Engines()[0]
	t.Setenv(engine.DSNVariable(), testdb.Shared(t, engine).Config().FormatDSN())
	for _, test := range []struct {
		list    string
		command []string
		code    int
		failed  bool
	}{
		{"oracle", []string{"true"}, 1, true},
		{"none", []string{"true"}, 1, true}, // so make test ENGINES=none fails
		{string(engine), []string{"sh", "-c", "kill -9 $$"}, 137, false},
		{string(engine), []string{"sh", "-c", "exit 3"}, 3, false},
		{string(engine), []string{"/nonexistent"}, 127, true},
	} {
		code, err := run(test.list, false, test.command)
		testdb.ErrorIf(t, code != test.code || (err != nil) != test.failed, "run(%q, %q) = %d, %v, want %d", test.list, test.command, code, err, test.code)
	}
}
