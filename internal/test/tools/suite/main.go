// Suite runs what make test, make quick, make verify and make lint consist of:
//
//	go run ./internal/test/tools/suite [-only part,...] [-beside 4] [-list] test|quick|verify
//
// A part is a list of commands, one after the other; parts run beside each other. What
// runs without the race detector, on one processor or not in each run is said by the build
// tags of its file: !race, onecpu and golden. It runs in the repository's root, under
// withservers, and has the modules and the tools from the Makefile's variables.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// part is a list of commands.
type part struct {
	name     string
	commands []command
	asked    bool // run only if it is asked for by its name
}

// command runs in a directory, with more variables than there are.
type command struct {
	dir  string
	env  []string
	args []string
}

func (c command) String() string {
	return strings.Join(append([]string{"cd " + c.dir + " &&"}, append(slices.Clone(c.env), c.args...)...), " ")
}

// with returns the command with more variables.
func (c command) with(env ...string) command {
	c.env = slices.Concat(c.env, env)
	return c
}

func main() {
	only := flag.String("only", "", "`parts` to run, behind commas; none stands for all but those that must be asked for")
	beside := flag.Int("beside", 4, "how many parts run beside each other")
	list := flag.Bool("list", false, "print the commands")
	timeout := flag.Duration("timeout", 20*time.Minute, "after which a package of tests hangs")
	flag.Parse()
	parts, err := chosen(flag.Arg(0), *timeout, strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }))
	if err == nil && *list {
		for _, p := range parts {
			for _, c := range p.commands {
				fmt.Printf("%s: %v\n", p.name, c)
			}
		}
		return
	}
	if err == nil {
		err = all(parts, *beside, flag.Arg(0) == "verify")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

// chosen returns the parts of what is to be run.
func chosen(what string, timeout time.Duration, only []string) (parts []part, err error) {
	var all []part
	switch what {
	case "test":
		all, err = tests(timeout)
	case "quick":
		all, err = quick()
	case "verify":
		all, err = checks()
	default:
		err = fmt.Errorf("say what to run: test, quick or verify, not %q", what)
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range all {
		names = append(names, p.name)
		if slices.Contains(only, p.name) || len(only) == 0 && !p.asked {
			parts = append(parts, p)
		}
	}
	if len(only) > 0 && len(parts) < len(only) {
		return nil, fmt.Errorf("%s has the parts %s, not all of %s", what, strings.Join(names, ", "), strings.Join(only, ", "))
	}
	return parts, nil
}

// all runs parts, and goes on after what fails. If collected, what a part prints is printed
// when it has ended.
func all(parts []part, beside int, collected bool) error {
	var mu sync.Mutex
	var failed []string
	turns := make(chan struct{}, beside)
	var group sync.WaitGroup
	for _, p := range parts {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			var kept bytes.Buffer
			out, began := io.Writer(os.Stdout), time.Now()
			if collected {
				out = &kept
			}
			wrong := p.run(out)
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, wrong...)
			if collected {
				fmt.Printf("%s, after %.0f s:\n%s", p.name, time.Since(began).Seconds(), kept.String())
			}
		})
	}
	group.Wait()
	if len(failed) > 0 {
		return fmt.Errorf("failed:\n%s", strings.Join(failed, "\n"))
	}
	return nil
}

// run runs all commands and returns those that have failed.
func (p part) run(out io.Writer) (failed []string) {
	for _, c := range p.commands {
		cmd := exec.Command(c.args[0], c.args[1:]...)
		cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v: %v", p.name, c, err))
		}
	}
	return failed
}

// modules returns the directories that a variable of the Makefile names.
func modules(variable string) ([]string, error) {
	dirs := strings.Fields(os.Getenv(variable))
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%s is not set: run it by make", variable)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(path.Join(dir, "go.mod")); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}
