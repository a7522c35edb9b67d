package checks_test

import (
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/dca00107/lockstep/cmd/lockvet/checks"
)

// TestChecks runs all checks over testdata, whose comments say what they find, and compares what their fixes write.
func TestChecks(t *testing.T) {
	if err := analysis.Validate(checks.All); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, result := range analysistest.RunWithSuggestedFixes(t, analysistest.TestData(), together(), "./...") {
		for _, d := range result.Diagnostics {
			if category := strings.Split(result.Pass.Pkg.Path(), "/")[2]; d.Category != category {
				t.Errorf("%s: category %q, want %q", d.Message, d.Category, category)
			}
			found[d.Category] = true
		}
	}
	for _, check := range checks.All {
		if !found[check.Name] {
			t.Errorf("%s has found nothing", check.Name)
		}
	}
}

// TestPrefix runs bypass with its flag.
func TestPrefix(t *testing.T) {
	set := func(prefix string) {
		if err := checks.Bypass.Flags.Set("prefix", prefix); err != nil {
			t.Error(err)
		}
	}
	set("t_")
	defer set("")
	analysistest.Run(t, analysistest.TestData(), checks.Bypass, "./bypass/_flag")
}

func together() *analysis.Analyzer {
	all := &analysis.Analyzer{Name: "together", Doc: "run all checks"}
	for _, check := range checks.All {
		all.Requires = append(all.Requires, check.Requires...)
	}
	all.Run = func(pass *analysis.Pass) (any, error) {
		for _, check := range checks.All {
			own := *pass
			own.Analyzer = check
			if _, err := check.Run(&own); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	return all
}
