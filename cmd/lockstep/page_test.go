package main

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "write docs/operations.md and the files of testdata anew")

// The files with what the commands print: the page for operators, what differs from it only by
// the server or is not worth a reader's time, and the forms of JSON.
const (
	pagePath = "../../docs/operations.md"
	restPath = "testdata/operations.md"
	jsonPath = "json.md"
)

// operations are these files. An example stands below a comment with the name of the situation
// and the server, or both.
type operations struct {
	mu    sync.Mutex
	texts map[string]string // by the path of the file
}

var page = func() *operations {
	o := &operations{texts: map[string]string{}}
	for _, path := range []string{pagePath, restPath, jsonPath} {
		text, _ := os.ReadFile(path) // where it is missing, its blocks are
		o.texts[path] = string(text)
	}
	return o
}()

// write writes a file anew.
func (o *operations) write(t *testing.T, path, text string) {
	t.Helper()
	o.texts[path] = text
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}

// block returns the example of a situation, by the name of its test, or nil.
func (o *operations) block(test string) *string {
	o.mu.Lock()
	defer o.mu.Unlock()
	name, engine := situationOf(test)
	for _, who := range []string{engine, "both"} {
		for _, text := range o.texts {
			if found := blockOf(name, who).FindStringSubmatch(text); found != nil {
				return &found[2]
			}
		}
	}
	return nil
}

func blockOf(name, who string) *regexp.Regexp {
	return regexp.MustCompile("(?s)(<!-- " + regexp.QuoteMeta(name+": "+who) + " -->\n```console\n)(.*?)(```\n)")
}

// situationOf reads the name of a test: TestSituations/mysql/a_forgotten_transaction, or that with
// /by_the_server.
func situationOf(test string) (name, engine string) {
	parts := strings.Split(test, "/")
	return strings.ReplaceAll(strings.Join(parts[2:], ", "), "_", " "), parts[1]
}

// compare compares an example with the page, or writes it.
func (o *operations) compare(t *testing.T, text string) {
	t.Helper()
	have := o.block(t.Name())
	if have == nil {
		t.Errorf("docs/operations.md and testdata/operations.md have no example for this test:\n%s", text)
		return
	}
	if *have == text {
		return
	}
	if !*update {
		t.Errorf("the command prints:\n%s\ndocs/operations.md has (go test -update writes it):\n%s", text, *have)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	name, engine := situationOf(t.Name())
	for _, who := range []string{engine, "both"} {
		for path, old := range o.texts {
			if found := blockOf(name, who).FindStringSubmatch(old); found != nil {
				o.write(t, path, strings.Replace(old, found[0], found[1]+text+found[3], 1))
				return
			}
		}
	}
}
