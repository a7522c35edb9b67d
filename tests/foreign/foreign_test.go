package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// stream is what go test -json writes of a package p.
func stream(events ...string) string {
	text := `{"Action":"start","Package":"p"}` + "\n"
	for _, e := range events {
		action, name, _ := strings.Cut(e, " ")
		text += fmt.Sprintf(`{"Action":"run","Package":"p","Test":%q}`+"\n", name)
		text += fmt.Sprintf(`{"Action":"output","Package":"p","Test":%q,"Output":"%s says %s\n"}`+"\n", name, name, action)
		if action != "run" {
			text += fmt.Sprintf(`{"Action":%q,"Package":"p","Test":%q,"Elapsed":0.1}`+"\n", action, name)
		}
	}
	return text + `{"Action":"fail","Package":"p"}` + "\n"
}

// TestCompare proves that a test which passes on the plain pool must pass on the other,
// and that nothing else counts.
func TestCompare(t *testing.T) {
	t.Parallel()
	read := func(events []string) results {
		return testdb.Got(readResults(strings.NewReader(stream(events...))))(t)
	}
	for name, c := range map[string]struct {
		plain, other []string
		worse        []string // the beginnings of the lines
	}{
		"the same":              {[]string{"pass A", "fail B", "skip C"}, []string{"pass A", "fail B", "skip C"}, nil},
		"better":                {[]string{"fail A", "skip B", "run C"}, []string{"pass A", "pass B", "pass C", "fail D"}, nil},
		"fails":                 {[]string{"pass A", "pass A/x", "pass B"}, []string{"fail A", "fail A/x", "pass B"}, []string{"p A passes on the plain pool and fails\nA says fail", "p A/x passes on the plain pool and fails"}},
		"is skipped":            {[]string{"pass A"}, []string{"skip A"}, []string{"p A passes on the plain pool and is skipped"}},
		"the process has ended": {[]string{"pass A", "pass B"}, []string{"run A"}, []string{"p A passes on the plain pool and does not end\nA says run", "p B passes on the plain pool and is not run", "what was said by no test there"}},
	} {
		worse := compare(read(c.plain), read(c.other))
		testdb.ErrorIf(t, !slices.EqualFunc(worse, c.worse, strings.HasPrefix), "%s: %q, want %q", name, worse, c.worse)
	}
}

// TestPatches proves that a suite which opens its pools in another way than before is
// refused, since it would run on the plain pool twice.
func TestPatches(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("a_test.go", `sql.Open("mysql", dsn); sql.Open("mysql", other)`)
	write("b.go", `sql.Open("mysql", dsn)`)
	s := suite{module: "m", dir: dir, patch: suites["driver"].patch[:1], inject: map[string]string{"below/c.go": "driver_in.go.txt"}}
	check(t, s.change())
	for name, want := range map[string]string{
		"a_test.go": `sql.Open(driverNameTest, dsn); sql.Open(driverNameTest, other)`, "b.go": `sql.Open("mysql", dsn)`,
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		testdb.ErrorIf(t, err != nil || string(text) != want, "%s: %s, %v", name, text, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "below", "c.go"))
	testdb.ErrorIf(t, err != nil || !strings.HasPrefix(string(text), "package mysql"), "%s, %v", text, err)
	testdb.Fails(t, "patched again", s.change(), `m: no *_test.go has sql.Open("mysql"`)
}

// TestRefused proves that what can't be run is refused before anything is started.
func TestRefused(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"-engines oracle":         "unknown engine",
		"-suites driver,nonsense": `"nonsense" is not one of driver, dbresolver, gorm`,
		"driver":                  `"driver" is no flag`,
	} {
		var out strings.Builder
		_, err := foreign(t.Context(), strings.Fields("-engines mariadb "+line), &out)
		testdb.Fails(t, line, err, says)
	}
}

// TestForeign runs a suite of the shape of GORM's on one server, built as these tests are, and shows that the pools are what they are
// called, and that what differs on them is told.
func TestForeign(t *testing.T) {
	t.Parallel()
	testdb.NeedsServer(t)
	engine := string(testdb.Engines()[0])
	line := []string{"-engines", engine, "-suites", "gorm", "-gorm", filepath.Join("testdata", "gormtests"), "-least", "5"}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		line = append(line, "-race")
	}
	var out strings.Builder
	differs, err := foreign(t.Context(), line, &out)
	testdb.FatalIf(t, err != nil || !differs, "%t, %v\n%s", differs, err, &out)
	testdb.Says(t, "the report", out.String(),
		"foreign: "+engine+" gorm.io/gorm/tests plain: 7 passed, 1 failed, 0 skipped",
		"foreign: "+engine+" gorm.io/gorm/tests guarded: 6 passed, 2 failed, 0 skipped",
		"foreign: "+engine+" gorm.io/gorm/tests plugin: 3 passed, 4 failed, 1 skipped",
		"foreign: DIFFERS "+engine+" gorm guarded: gorm.io/gorm/tests TestOnPlainOnly passes on the plain pool and fails",
		"foreign: DIFFERS "+engine+" gorm plugin: gorm.io/gorm/tests TestOnPlainOnly passes on the plain pool and fails",
		"foreign: DIFFERS "+engine+" gorm plugin: gorm.io/gorm/tests TestWithoutPluginOnly passes on the plain pool and is skipped",
	)
	n := strings.Count(out.String(), "DIFFERS")
	testdb.ErrorIf(t, n != 3 || strings.Contains(out.String(), "TestFails passes"), "%d tests differ", n)
	if t.Failed() {
		t.Log(out.String())
	}
}

var check = testdb.Must
