// Command mutate breaks the decisions of the library one by one, and demands that a test
// notices each.
//
// The directory mutations has a list for each area. A mutation there is
//
//	# A lease that has expired can't be renewed.
//	in gen/leases.sql.go: RenewLease
//	by txlock/lease TestRenewalOfTheExpired on mariadb,mysql
//	-    AND lockstep_leases.expires_us > clock
//	+    AND lockstep_leases.expires_us > 0
//
// It names the decision that it breaks, the file and the declaration (no name stands for the
// whole file; in an SQL file it is what CREATE makes), and the test that must fail, with the servers that this needs; none are
// needed without "on". The lines after - occur once in the declaration, and the lines after +
// take their place. An SQL text is changed where sqlc has put it, in package gen. A mutation
// that nothing can notice has a line "equivalent", which says why, in place of "by".
//
// Nothing is written to the checkout: go test -overlay compiles the changed files. Functions,
// the texts of package gen and SQL files that a package embeds are not compiled one by one: one binary for each package of
// tests has all that is run, and a variable of the environment says which one it uses. What
// is no function is compiled by itself. Each test must pass before, without the mutation.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	r := runner{began: time.Now()}
	engines := flag.String("engines", os.Getenv("LOCKSTEP_ENGINES"), "the servers to run on: mariadb,mysql; none leaves out what needs one")
	only := flag.String("only", "", "parts of the names of areas, or of the files that are changed, or mutations as they are printed, behind commas")
	flag.IntVar(&r.jobs, "j", 2, "how many mutations are compiled and run at the same time")
	flag.DurationVar(&r.limit, "limit", 8*time.Minute, "how long a test may run, which may wait for five minutes for what never comes")
	flag.StringVar(&r.instead, "run", "", "the tests of the package to run, a regular expression as of go test, in place of the one that is named")
	baseline := flag.Bool("baseline", true, "run the tests without a mutation first, which they must pass")
	flag.Parse()
	r.engines = strings.Split(*engines, ",")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := r.main(ctx, *only, *baseline)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func (r *runner) main(ctx context.Context, only string, baseline bool) (err error) {
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return err
	}
	tests := filepath.Dir(strings.TrimSpace(string(module)))
	r.root = filepath.Dir(tests)
	all, err := readLists(filepath.Join(tests, "mutate", "mutations"))
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m *mutation) bool {
		return !slices.ContainsFunc(strings.Split(only, ","), m.is)
	})
	if r.choices, err = choices(r.root, all); err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("no mutation is named %q", only)
	}
	if r.dir, err = os.MkdirTemp("", "lockstep-mutate-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(r.dir) }()
	if baseline && r.instead == "" {
		if err := r.baseline(ctx, all); err != nil {
			return err
		}
	}
	return r.all(ctx, all)
}
