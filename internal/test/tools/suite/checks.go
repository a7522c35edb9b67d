package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// tags are those behind which files of this repository are.
const tags = "cluster,golden,onecpu,promtool,proxies,site,tidb,vitess"

// licences of what is in one module, and can't be read or allowed for all: freetype, which
// draws the charts of the bench, is under the FreeType License, and svgo under CC BY 4.0;
// parts of the Redis of the tests of contrib/recipes are under BSL-1.0 and the Unlicense.
var licences = map[string]string{
	"bench":           "--ignore github.com/golang/freetype --ignore github.com/ajstarks/svgo",
	"contrib/recipes": "--ignore github.com/alicebob/miniredis",
}

// checks are the parts of make verify. One after the other they would leave a processor idle
// for half of the time.
func checks() ([]part, error) {
	mods, err := modules("MODULES")
	if err != nil {
		return nil, err
	}
	r := &runner{flags: []string{"-count=1", "-vet=off", "-timeout=25m"}} // each compiles much without caches
	source := sourceChecks(r, mods)
	// What the tests of the tutorials and of releases need no server or much time for.
	source = append(source, r.test("tests", nil, "./doctest", "./release").with("LOCKSTEP_ENGINES=none"))
	chromium := command{dir: ".", args: []string{"internal/test/tools/need-chromium.sh"}}
	return []part{
		{name: "lint", commands: lint(mods)},
		{name: "source", commands: source},
		// The queries and the generated code, on the servers.
		{name: "sql", commands: []command{shell(".", "go run ./internal/test/tools/verify -sqlc '$SQLC'")}},
		// The pages of lockhttp in Chromium.
		{name: "pages", commands: []command{chromium, r.test("tests/lockhttp", nil, ".")}},
		{name: "licences", commands: each(mods, func(module string) command {
			return shell(module, `found=$($LICENCES `+licences[module]+` ./... 2>&1) || { echo "$found"; exit 1; }`)
		})},
		{name: "vulnerabilities", commands: vulnerabilities(mods)},
		// The dashboard and the alerts of contrib/grafana, by promtool.
		{name: "rules", commands: r.behind("examples/metrics", nil, []string{"-tags=promtool"}, nil, ".")},

		// The tutorials, command by command.
		{name: "docs", asked: true, commands: []command{r.test("tests", nil, "./doctest")}},
		// The README, in both languages, from an empty directory without any cache.
		{name: "newcomer", asked: true, commands: []command{r.test("tests", []string{"-v", "-run=^TestNewcomer$"}, "./doctest").with("LOCKSTEP_BARE=1")}},
		// A whole release in a clone, of which each module is tried as users would.
		{name: "release", asked: true, commands: []command{r.test("tests", nil, "./release").with("LOCKSTEP_LONG=1", "LOCKSTEP_ENGINES=none")}},
		// The site, whose every page is read in Chromium. npm fetches what makes it.
		{name: "site", asked: true, commands: []command{
			{dir: ".", args: []string{"make", "site", "SITE_BASE=/"}}, chromium, r.test("tests/lockhttp", []string{"-tags=site"}, "./site"),
		}},
	}, r.err
}

// sourceChecks looks at what was generated, the format and go.mod.
func sourceChecks(r *runner, mods []string) []command {
	golden := r.behind("cmd/lockgen", nil, []string{"-tags=golden"}, nil, ".")
	for i := range golden {
		golden[i] = golden[i].with("LOCKSTEP_LONG=1", "LOCKSTEP_ENGINES=none")
	}
	return slices.Concat([]command{shell("tests/gormgen", "go run ./generate -check")}, golden, []command{
		shell(".", `wrong=$(gofmt -l .); test -z "$wrong" || { echo "Not formatted, run gofmt -w on:"; echo "$wrong"; exit 1; }`),
	}, each(mods, func(module string) command {
		return shell(module, "go mod tidy -diff || { echo 'go.mod is not tidy: run go mod tidy.'; exit 1; }")
	}), []command{
		shell("examples/sqlcorders", "go tool lockgen -check shopdb"),
		shell("cmd/lockgen", "go run . -check ../../tests/chaos/generated"),
	})
}

// lint runs golangci-lint, which knows what go vet does, on all modules and on what lockgen has
// generated, and looks for functions that nothing in all modules reaches.
func lint(mods []string) []command {
	return []command{
		command{dir: ".", args: append([]string{"internal/test/tools/lint.sh"}, mods...)}.with("TAGS=" + tags),
		shell("cmd/lockgen", "$GOLANGCI run --allow-parallel-runners --config testdata/.golangci.yaml --build-tags tagged $(find ./testdata -name lockstep.gen.go -exec dirname {} +)"),
	}
}

// vulnerabilities looks all dependencies up.
func vulnerabilities(mods []string) []command {
	if os.Getenv("VULNDB") == "none" {
		return []command{{dir: ".", args: []string{"echo", "The dependencies are not looked up for vulnerabilities: VULNDB is none."}}}
	}
	return each(mods, func(module string) command { return shell(module, "$VULNCHECK -db $VULNDB ./...") })
}

// each makes a command for each module.
func each(mods []string, do func(module string) command) (all []command) {
	for _, module := range mods {
		all = append(all, do(module))
	}
	return all
}

// shell is a line of the shell, in which $NAME is what the Makefile says of a tool.
func shell(dir, line string) command {
	for _, name := range []string{"SQLC", "GOLANGCI", "LICENCES", "VULNCHECK", "VULNDB"} {
		line = strings.ReplaceAll(line, "$"+name+" ", os.Getenv(name)+" ")
		line = strings.ReplaceAll(line, fmt.Sprintf("'$%s'", name), "'"+os.Getenv(name)+"'")
	}
	return command{dir: dir, args: []string{"sh", "-c", line}}
}
