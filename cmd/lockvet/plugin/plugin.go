// Package plugin offers lockvet to golangci-lint, as a module plugin.
package plugin

import (
	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/dca00107/lockstep/cmd/lockvet/checks"
)

func init() { register.Plugin("lockvet", New) }

// New makes the plugin. Its setting is the flag prefix of the check bypass.
func New(settings any) (register.LinterPlugin, error) {
	s, err := register.DecodeSettings[struct {
		Prefix string `json:"bypass-prefix"`
	}](settings)
	if err != nil {
		return nil, err
	}
	return lockvet{}, checks.Bypass.Flags.Set("prefix", s.Prefix)
}

type lockvet struct{}

// BuildAnalyzers returns the checks of lockvet.
func (lockvet) BuildAnalyzers() ([]*analysis.Analyzer, error) { return checks.All, nil }

// GetLoadMode says that the checks need types.
func (lockvet) GetLoadMode() string { return register.LoadModeTypesInfo }
