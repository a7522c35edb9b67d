package checks_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/dca00107/lockstep/cmd/lockvet/checks"
)

// TestChecks runs each check over its package of testdata, whose comments say what it
// finds, and compares what its fixes write.
func TestChecks(t *testing.T) {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range checks.All {
		t.Run(check.Name, func(t *testing.T) {
			for _, result := range analysistest.RunWithSuggestedFixes(t, dir, check, "./"+check.Name) {
				for _, d := range result.Diagnostics {
					if d.Category != check.Name {
						t.Errorf("category %q", d.Category)
					}
				}
			}
		})
	}
}

// TestOnlyTheirOwn runs all checks over the packages of the others: code that is right for
// one check may be wrong for another, but those of helpers is right for all.
func TestOnlyTheirOwn(t *testing.T) {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	if err := analysis.Validate(checks.All); err != nil {
		t.Fatal(err)
	}
	for _, check := range checks.All {
		analysistest.Run(t, dir, check, "./helper")
	}
}
