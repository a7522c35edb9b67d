package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// TestPlanted proves that every text which a bug changes stands in a statement.
func TestPlanted(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../gen/*.sql.go")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files of statements, %v", len(paths), err)
	}
	holds := []rawsql.Hold{{Name: "a", Owner: "b", Hold: "c"}}
	statements := rawsql.RenewMany(holds) + rawsql.HeldMany(holds, 1) + rawsql.Named.LockMany(2) +
		rawsql.AcquireMany([]rawsql.Wanted{{Name: "a", Hold: "c"}}, 1<<50)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		fatal(t, err)
		statements += string(text)
	}
	for bug, texts := range planted {
		for i := 0; i < len(texts); i += 2 {
			if !strings.Contains(statements, texts[i]) {
				t.Errorf("%s: no statement has %q", bug, texts[i])
			}
		}
	}
}
