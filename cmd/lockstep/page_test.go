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

const pagePath = "../../docs/operations.md"

// operations is the page for operators. Its examples are what the commands print, each
// below a comment with the name of the situation and the server, or both.
type operations struct {
	mu   sync.Mutex
	text string
}

var page = func() *operations {
	text, _ := os.ReadFile(pagePath) // where it is missing, all blocks are
	return &operations{text: string(text)}
}()

// block returns the example of a situation, by the name of its test, or nil.
func (o *operations) block(test string) *string {
	o.mu.Lock()
	defer o.mu.Unlock()
	name, engine := situationOf(test)
	for _, who := range []string{engine, "both"} {
		if found := blockOf(name, who).FindStringSubmatch(o.text); found != nil {
			return &found[2]
		}
	}
	return nil
}

func blockOf(name, who string) *regexp.Regexp {
	return regexp.MustCompile("(?s)(<!-- " + regexp.QuoteMeta(name+": "+who) + " -->\n```console\n)(.*?)(```\n)")
}

// situationOf reads the name of a test: TestSituations/mysql/a_forgotten_transaction.
func situationOf(test string) (name, engine string) {
	parts := strings.Split(test, "/")
	return strings.ReplaceAll(parts[2], "_", " "), parts[1]
}

// compare compares an example with the page, or writes it.
func (o *operations) compare(t *testing.T, text string) {
	t.Helper()
	have := o.block(t.Name())
	if have == nil {
		t.Errorf("docs/operations.md has no example for this test:\n%s", text)
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
		o.text = blockOf(name, who).ReplaceAllStringFunc(o.text, func(block string) string {
			parts := blockOf(name, who).FindStringSubmatch(block)
			return parts[1] + text + parts[3]
		})
	}
	if err := os.WriteFile(pagePath, []byte(o.text), 0o644); err != nil {
		t.Error(err)
	}
}
