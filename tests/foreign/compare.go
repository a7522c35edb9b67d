package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// outcome is what became of a test.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
	begun   outcome = "run" // and never ended: the process was gone
)

// results are the outcomes of tests, by package and name, with what they have said.
type results struct {
	outcomes map[string]outcome
	output   map[string]string
	rest     string // what was said by no test: why it was not built, for example
}

// event is a line of go test -json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of output of the build
	Test       string
	Output     string
}

// readResults reads what go test -json writes. A line that is no event is an error: the
// output of tests comes as events.
func readResults(r io.Reader) (results, error) {
	found := results{outcomes: make(map[string]outcome), output: make(map[string]string)}
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return found, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return found, err
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return found, fmt.Errorf("%q: %w", line, err)
		}
		name := e.Package + " " + e.Test
		switch action := outcome(e.Action); {
		case e.Action == "output" && e.Test != "":
			found.output[name] += e.Output
		case e.Action == "output" || e.Action == "build-output":
			found.rest += e.Output
		case e.Test == "":
		case slices.Contains([]outcome{passed, failed, skipped, begun}, action):
			found.outcomes[name] = action
		}
	}
}

// count is the number of tests with that outcome.
func (r results) count(of outcome) (n int) {
	for _, o := range r.outcomes {
		if o == of {
			n++
		}
	}
	return n
}

func (r results) counts() string {
	text := fmt.Sprintf("%d passed, %d failed, %d skipped", r.count(passed), r.count(failed), r.count(skipped))
	if n := r.count(begun); n > 0 {
		text += fmt.Sprintf(", %d never ended", n)
	}
	return text
}

// enough is an error where hardly a test has passed, which proves nothing.
func (r results) enough(least int) error {
	if n := r.count(passed); n < least {
		return fmt.Errorf("%d tests have passed on the plain pool, which says little: %d at least should\n%s", n, least, clipped(r.failures()))
	}
	return nil
}

// failures is what tests that have not passed have said, and what none has said.
func (r results) failures() string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.outcomes)) {
		if o := r.outcomes[name]; o == failed || o == begun {
			text.WriteString(r.output[name])
		}
	}
	return text.String() + r.rest
}

// topOf returns the test that a subtest is of, without its package.
func topOf(name string) string {
	_, test, _ := strings.Cut(name, " ")
	top, _, _ := strings.Cut(test, "/")
	return top
}

// compare returns, line by line, the tests that pass on the plain pool and not on the
// other, with what they have said there; and those of the known that do pass.
func compare(plain, other results, known ...string) (worse []string) {
	missing := false
	for _, name := range known {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(other.outcomes)), func(of string) bool { return topOf(of) == name && other.outcomes[of] == failed }) {
			worse = append(worse, name+" is known to fail and doesn't")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(plain.outcomes)) {
		if plain.outcomes[name] != passed || other.outcomes[name] == passed || slices.Contains(known, topOf(name)) {
			continue
		}
		line := map[outcome]string{
			failed:  "fails",
			skipped: "is skipped",
			begun:   "does not end",
			"":      "is not run",
		}[other.outcomes[name]]
		missing = missing || other.outcomes[name] == ""
		worse = append(worse, fmt.Sprintf("%s passes on the plain pool and %s\n%s", name, line, clipped(other.output[name])))
	}
	if missing {
		worse = append(worse, "what was said by no test there: "+clipped(other.rest))
	}
	return worse
}
