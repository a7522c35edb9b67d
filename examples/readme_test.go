// Package examples holds the programs below it, and the test that the code in the
// README is compiled code.
package examples

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeCodeIsCompiled finds every Go block of the README in the examples of
// the packages, white space apart.
func TestReadmeCodeIsCompiled(t *testing.T) {
	squeeze := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	space := regexp.MustCompile(`\s+`)
	compiled := ""
	for _, room := range []string{"locksqlc", "lockgorm", "txlock/lease", "txlock/quorum"} {
		compiled += space.ReplaceAllString(squeeze("../"+room+"/example_test.go"), " ")
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(squeeze("../README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no Go code")
	}
	for _, block := range blocks {
		for piece := range strings.SplitSeq(block[1], "\n\n") {
			if want := strings.TrimSpace(space.ReplaceAllString(piece, " ")); !strings.Contains(compiled, want) {
				t.Errorf("not in an example_test.go:\n%s", piece)
			}
		}
	}
}
