package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// suite is a module whose tests are run, in a copy of it.
type suite struct {
	name   string
	module string
	least  int      // tests that must pass on the plain pool, or nothing is proved
	pools  []string // beside the plain one
	flags  []string // of go test
	skip   []string // tests that are not run on any pool
	known  []string // tests that fail on the last of the pools, and should
	inject map[string]string
	patch  []patch

	dir string // of the copy
}

// patch is a change of the text of test files.
type patch struct {
	files    string // a pattern
	old, new string
	find     *regexp.Regexp // what old says
}

// exactly changes a text as it is.
func exactly(files, old, with string) patch {
	return patch{files, old, with, regexp.MustCompile(regexp.QuoteMeta(old))}
}

// matching changes what a regular expression matches.
func matching(files, old, with string) patch {
	return patch{files, old, with, regexp.MustCompile(old)}
}

const lockstep = "github.com/dca00107/lockstep"

// openGorm has GORM's dialector made by the package that stands beside the tests.
func openGorm(module string) patch {
	return exactly("*_test.go", `"gorm.io/driver/mysql"`, `mysql "`+module+`/foreignmysql"`)
}

// inStruct matches a primary key that is a number, alone in its line of a struct.
const inStruct, withTag = `(?m)^(\s+(gorm\.Model|(ID|Id)\s+u?int\d*))$`, "$1 `lockstep:\"row\"`"

var suites = map[string]suite{
	"driver": {
		module: "github.com/go-sql-driver/mysql",
		least:  350,
		pools:  []string{"guarded"},
		flags:  []string{"-ldflags=-X=github.com/go-sql-driver/mysql.driverNameTest=foreign"},
		// It dials an address on the Internet, and panics where there is no way to it.
		skip: []string{"TestConnectorReturnsTimeout"},
		// A guarded pool refuses rejectReadOnly, and says why.
		known: []string{"TestRejectReadOnly"},
		inject: map[string]string{
			"foreign_test.go":          "driver_in.go.txt",
			"foreign_register_test.go": "driver_out.go.txt",
		},
		patch: []patch{
			exactly("*_test.go", `sql.Open("mysql", `, `sql.Open(driverNameTest, `),
			exactly("*_test.go", `sql.OpenDB(`, `foreignOpenDB(`),
			exactly("*_test.go", `conn.(*mysqlConn)`, `foreignConn(conn)`), // what Conn.Raw gives
		},
	},
	"dbresolver": {
		module: "gorm.io/plugin/dbresolver",
		least:  20,
		pools:  []string{"guarded", "plugin"},
		inject: map[string]string{"foreignmysql/mysql.go": "gorm_mysql.go.txt"},
		patch:  []patch{openGorm("gorm.io/plugin/dbresolver")},
	},
	"gorm": {
		module: "gorm.io/gorm/tests",
		least:  10000,
		pools:  []string{"guarded", "plugin"},
		inject: map[string]string{"foreignmysql/mysql.go": "gorm_mysql.go.txt"},
		// They embed a model with a tag in another, whose primary key is its own: the tag can't be
		// followed there, and says so.
		known: []string{"TestEmbedPreload", "TestEmbeddedTagSetting"},
		patch: []patch{
			openGorm("gorm.io/gorm/tests"),
			// They tell changes by times, which are those of a millisecond on a fast machine.
			exactly("tests_test.go", `&gorm.Config{}); err != nil {`, `&gorm.Config{NowFunc: mysql.Now}); err != nil {`),
			// TestLoadingExpired reads a value that expires after 5 ms, in which a busy machine runs others.
			matching("*_test.go", `time\.Millisecond ?\* ?5\)`, `time.Second)`),
			// The plugin locks the models that have a tag: those whose primary key is one number.
			matching("../utils/tests/models.go", inStruct, withTag),
			matching("*_test.go", inStruct, withTag),
		},
	},
}

//go:embed inject
var injected embed.FS

// prepare copies a suite into a directory below dir, and changes how it opens a pool.
func (o *options) prepare(ctx context.Context, name, dir string) (*suite, error) {
	s := suites[name]
	s.name = name
	if o.least > 0 {
		s.least = o.least
	}
	root, err := goes(ctx, ".", "list", "-m", "-f", "{{.Dir}}", lockstep)
	if err != nil {
		return nil, err
	}
	newest := filepath.Join(root, "tests", "gormgen") // whose go.mod has the versions of all suites
	if name == "gorm" {
		s.dir, err = o.copyGorm(ctx, newest, filepath.Join(dir, name))
	} else {
		s.dir = filepath.Join(dir, name)
		_, err = copyModule(ctx, newest, s.module, s.dir)
	}
	if err != nil {
		return nil, err
	}
	if err := s.change(); err != nil {
		return nil, err
	}
	return &s, s.require(ctx, root)
}

// require lets the copy import lockstep. The sums of what both need are known.
func (s *suite) require(ctx context.Context, root string) error {
	replaces, err := exec.CommandContext(ctx, filepath.Join(root, "examples/replace.sh")).Output()
	if err != nil {
		return fmt.Errorf("examples/replace.sh: %w", err)
	}
	edits := append([]string{"mod", "edit", "-require=" + lockstep + "@v0.0.0", "-require=" + lockstep + "/lockgorm@v0.0.0"}, strings.Fields(string(replaces))...)
	if _, err := goes(ctx, s.dir, edits...); err != nil {
		return err
	}
	known, err := os.ReadFile(filepath.Join(root, "tests", "gormgen", "go.sum"))
	if err != nil {
		return err
	}
	sums := filepath.Join(s.dir, "go.sum")
	own, err := os.ReadFile(sums)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(sums, append(own, known...), 0o600); err != nil {
		return err
	}
	_, err = goes(ctx, s.dir, "mod", "tidy")
	return err
}

// module is what go list -m -json and go mod download -json tell.
type module struct {
	Version string
	Dir     string
	Error   string
	Origin  *struct{ Hash string }
}

// download has a module in the module cache.
func download(ctx context.Context, root, query string) (m module, err error) {
	// The error is in the output.
	text, err := command(ctx, root, "mod", "download", "-json", query).Output()
	if jsonErr := json.Unmarshal(text, &m); jsonErr != nil {
		return m, fmt.Errorf("go mod download -json %s: %w: %w\n%s", query, err, jsonErr, text)
	}
	if m.Error != "" {
		return m, fmt.Errorf("go mod download %s: %s", query, m.Error)
	}
	return m, err
}

// copyModule copies a module that lockstep needs, in the version of its go.mod.
func copyModule(ctx context.Context, root, path, to string) (m module, err error) {
	version, err := goes(ctx, root, "list", "-m", "-f", "{{.Version}}", path)
	if err != nil {
		return m, err
	}
	if m, err = download(ctx, root, path+"@"+version); err != nil {
		return m, err
	}
	return m, copyTree(to, m.Dir)
}

// copyGorm copies GORM, and its tests where their go.mod looks for it: below it.
func (o *options) copyGorm(ctx context.Context, root, to string) (dir string, err error) {
	dir = filepath.Join(to, "tests")
	gorm, err := copyModule(ctx, root, "gorm.io/gorm", to)
	if err != nil {
		return "", err
	}
	if o.gorm != "" {
		return dir, copyTree(dir, o.gorm)
	}
	const cure = "check GORM out at %s and name its directory tests: make test-foreign GORM_TESTS=DIRECTORY"
	if gorm.Origin == nil || gorm.Origin.Hash == "" {
		return "", fmt.Errorf("the module proxy doesn't tell the commit of gorm.io/gorm %s: "+cure, gorm.Version, gorm.Version)
	}
	tests, err := download(ctx, root, "gorm.io/gorm/tests@"+gorm.Origin.Hash)
	if err != nil {
		return "", fmt.Errorf("%w: "+cure, err, gorm.Version)
	}
	return dir, copyTree(dir, tests.Dir)
}

// copyTree copies the files of a directory, which are read-only in the module cache.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o600)
	})
}

// change puts files beside the tests, and patches these. A patch that fits nowhere is an
// error: the suite would run on a plain pool, and prove nothing.
func (s *suite) change() error {
	for _, p := range s.patch {
		paths, err := filepath.Glob(filepath.Join(s.dir, p.files))
		if err != nil {
			return err
		}
		places := 0
		for _, path := range paths {
			n, err := p.apply(path)
			if err != nil {
				return err
			}
			places += n
		}
		if places == 0 {
			return fmt.Errorf("%s: no %s has %s: look at how its tests open a pool now", s.module, p.files, p.old)
		}
	}
	for name, source := range s.inject {
		text, err := injected.ReadFile("inject/" + source)
		if err != nil {
			return err
		}
		path := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// apply returns in how many places of a file the patch fits.
func (p patch) apply(path string) (n int, err error) {
	before, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n = len(p.find.FindAllIndex(before, -1))
	if n == 0 {
		return 0, nil
	}
	return n, os.WriteFile(path, p.find.ReplaceAll(before, []byte(p.new)), 0o600)
}
