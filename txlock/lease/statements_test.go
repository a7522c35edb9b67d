package lease_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestClocksMove looks for comparisons with the clock that stand still on MySQL 8.0: it
// executes a prepared "column < UNIX_TIMESTAMP() * 1000000" with the time at which it
// was executed first, unless something in the expression is no constant to it. On a
// server that does so, TestTokensOutliveRows fails.
func TestClocksMove(t *testing.T) {
	t.Parallel()
	compared := regexp.MustCompile(`[<>=]\s*UNIX_TIMESTAMP\(\) \* 1000000( [+-] (?:MICROSECOND\(NOW\(6\)\)|CAST\(\?))?`)
	files, err := filepath.Glob("../../gen/*.sql.go")
	must(t, err)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, match := range compared.FindAllStringSubmatch(string(text), -1) {
			if found++; match[1] == "" {
				t.Errorf("%s: %q: add MICROSECOND(NOW(6))", file, match[0])
			}
		}
	}
	if found == 0 {
		t.Error("no comparison with the clock was found")
	}
}
