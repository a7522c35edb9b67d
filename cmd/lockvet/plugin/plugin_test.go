package plugin_test

import (
	"testing"

	"github.com/golangci/plugin-module-register/register"

	"github.com/dca00107/lockstep/cmd/lockvet/checks"
	_ "github.com/dca00107/lockstep/cmd/lockvet/plugin"
)

// TestPlugin asks for the plugin as golangci-lint does.
func TestPlugin(t *testing.T) {
	newPlugin, err := register.GetPlugin("lockvet")
	if err != nil {
		t.Fatal(err)
	}
	plugin, err := newPlugin(nil)
	if err != nil {
		t.Fatal(err)
	}
	analyzers, err := plugin.BuildAnalyzers()
	if err != nil || len(analyzers) != len(checks.All) || plugin.GetLoadMode() != register.LoadModeTypesInfo {
		t.Errorf("%d analyzers, %v, %v", len(analyzers), plugin.GetLoadMode(), err)
	}
}
