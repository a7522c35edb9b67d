// Verify checks the SQL of the repository, for every sqlc.yaml in it:
//
//   - the generated code is what sqlc makes of the queries now,
//   - sqlc has dropped no query,
//   - every server prepares every query.
//
// It runs in the repository's root, under withservers, which gives it the
// servers. make verify does both. With -generate it writes the generated code in place of
// all that, and needs no server: make generate does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/internal/test/tools/checkqueries"
)

func main() {
	sqlc := flag.String("sqlc", "sqlc", "`command` that runs sqlc")
	generates := flag.Bool("generate", false, "write the generated code")
	flag.Parse()
	// A signal ends it through the context, so that nothing is left behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	run := verify
	if *generates {
		run = generate
	}
	err := run(ctx, strings.Fields(*sqlc))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// generate writes what sqlc makes of the queries, which read the clock by its names then.
func generate(ctx context.Context, sqlc []string) error {
	if err := foldQueries("queries"); err != nil {
		return err
	}
	return inCopy(func(cfg config, copied string) ([]string, error) {
		said, err := runSQLC(ctx, sqlc, copied, "generate", "--file", cfg.path)
		if said != "" || err != nil {
			return []string{said}, err
		}
		return nil, write(filepath.Join(copied, cfg.out), cfg.out)
	})
}

func verify(ctx context.Context, sqlc []string) error {
	engines, err := testdb.ParseEngines(os.Getenv("LOCKSTEP_ENGINES"))
	if err != nil {
		return err
	}
	return inCopy(func(cfg config, copied string) ([]string, error) {
		return verifyConfig(ctx, sqlc, cfg, copied, engines)
	})
}

// inCopy calls do for every sqlc.yaml, with a copy of what sqlc reads, into which it writes.
// It returns the problems that do has found.
func inCopy(do func(cfg config, copied string) ([]string, error)) error {
	configs, err := findConfigs(".")
	if err != nil {
		return err
	}
	copied, err := os.MkdirTemp("", "lockstep-verify-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(copied) }()
	if err := copySources(".", copied); err != nil {
		return err
	}
	var problems []string
	for _, path := range configs {
		cfg, err := readConfig(path)
		if err != nil {
			return err
		}
		found, err := do(cfg, copied)
		if err != nil {
			return err
		}
		problems = append(problems, found...)
		fmt.Printf("looked at %s\n", path)
	}
	if len(problems) > 0 {
		return fmt.Errorf("verify: failed:\n%s", strings.Join(problems, "\n"))
	}
	return nil
}

// verifyConfig returns what is wrong, each with the remedy.
func verifyConfig(ctx context.Context, sqlc []string, cfg config, copied string, engines []testdb.Engine) ([]string, error) {
	said, err := runSQLC(ctx, sqlc, copied, "generate", "--file", cfg.path)
	if err != nil {
		return nil, err
	}
	if said != "" { // nothing else can be right then
		return []string{fmt.Sprintf("%s: sqlc generate fails: correct the query:\n%s", cfg.path, said)}, nil
	}
	problems, err := compare(filepath.Join(copied, cfg.out), cfg.out)
	if err != nil {
		return nil, err
	}
	dropped, err := checkqueries.Check(cfg.queries, cfg.out)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.path, err)
	}
	problems = append(problems, dropped...)
	for _, engine := range engines {
		refused, err := vet(ctx, sqlc, cfg, copied, engine)
		if err != nil {
			return nil, err
		}
		problems = append(problems, refused...)
	}
	return problems, nil
}

// runSQLC runs sqlc in the copy and returns what it says when it refuses.
func runSQLC(ctx context.Context, sqlc []string, copied string, args ...string) (said string, err error) {
	cmd := exec.CommandContext(ctx, sqlc[0], append(sqlc[1:len(sqlc):len(sqlc)], args...)...)
	cmd.Dir = copied
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return strings.TrimSpace(string(out)), nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(sqlc, " "), err)
	}
	return "", nil
}
