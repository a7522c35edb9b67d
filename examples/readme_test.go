// Package examples holds the programs below it, and the test that the code in the
// README is compiled code.
package examples

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// compiledCode is where the Go code of the README comes from.
var compiledCode = []string{
	"../locksqlc/example_test.go", "../lockgorm/example_test.go", "../txlock/lease/example_test.go", "../txlock/namespace_test.go",
	"../txlock/quorum/example_test.go", "../txlock/job/example_test.go", "../txlock/elect/example_test.go", "../lockhttp/example_test.go",
	"../contrib/gocron/example_test.go", "../contrib/cron/example_test.go",
	"../contrib/recipes/asynq_test.go", "../contrib/recipes/river_test.go",
	"stocktest/stock.go", "stocktest/mock_test.go", "stocktest/memory_test.go", "metrics/service.go",
}

// TestReadmeCodeIsCompiled finds every Go block of the README in these files, white
// space apart.
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
	for _, file := range compiledCode {
		compiled += space.ReplaceAllString(squeeze(file), " ")
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(squeeze("../README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no Go code")
	}
	for _, block := range blocks {
		for piece := range strings.SplitSeq(block[1], "\n\n") {
			if want := strings.TrimSpace(space.ReplaceAllString(piece, " ")); !strings.Contains(compiled, want) {
				t.Errorf("not in any of the files:\n%s", piece)
			}
		}
	}
}
