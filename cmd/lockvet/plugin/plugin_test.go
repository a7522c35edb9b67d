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
	if _, err := newPlugin(map[string]any{"prefix": "t_"}); err == nil {
		t.Error("no error of a setting that doesn't exist")
	}
	if _, err := newPlugin(map[string]any{"bypass-prefix": "t_"}); err != nil || checks.Bypass.Flags.Lookup("prefix").Value.String() != "t_" {
		t.Errorf("%v, %v", checks.Bypass.Flags.Lookup("prefix").Value, err)
	}
	plugin, err := newPlugin(nil)
	if err != nil || checks.Bypass.Flags.Lookup("prefix").Value.String() != "" {
		t.Fatal(checks.Bypass.Flags.Lookup("prefix").Value, err)
	}
	analyzers, err := plugin.BuildAnalyzers()
	if err != nil || len(analyzers) != len(checks.All) || plugin.GetLoadMode() != register.LoadModeTypesInfo {
		t.Errorf("%d analyzers, %v, %v", len(analyzers), plugin.GetLoadMode(), err)
	}
}
