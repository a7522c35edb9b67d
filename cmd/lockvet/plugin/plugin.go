// Package plugin offers lockvet to golangci-lint, as a module plugin.
package plugin

import (
	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/dca00107/lockstep/cmd/lockvet/checks"
)

func init() { register.Plugin("lockvet", New) }

// New makes the plugin, which has no settings.
func New(any) (register.LinterPlugin, error) { return lockvet{}, nil }

type lockvet struct{}

// BuildAnalyzers returns the checks of lockvet.
func (lockvet) BuildAnalyzers() ([]*analysis.Analyzer, error) { return checks.All, nil }

// GetLoadMode says that the checks need types.
func (lockvet) GetLoadMode() string { return register.LoadModeTypesInfo }
