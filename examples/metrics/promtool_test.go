//go:build promtool

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPromtool has promtool read the alerts and the queries of the dashboard, and try the
// alerts on recorded series.
func TestPromtool(t *testing.T) {
	dashboard := strings.Builder{}
	dashboard.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, query := range queriesOf(t) {
		if !strings.HasPrefix(query, "label_values(") { // which is Grafana's
			query = strings.NewReplacer("$__rate_interval", "5m", "$family", ".*").Replace(query)
			fmt.Fprintf(&dashboard, "  - {record: 'panel:%d', expr: '%s'}\n", i, query)
		}
	}
	panels := filepath.Join(t.TempDir(), "dashboard.yaml")
	check(t, os.WriteFile(panels, []byte(dashboard.String()), 0o600))
	for _, arguments := range [][]string{{"check", "rules", grafana + "alerts.yaml", panels}, {"test", "rules", grafana + "alerts_test.yaml"}} {
		promtool := exec.CommandContext(t.Context(), "../../internal/test/tools/promtool.sh", arguments...)
		if said, err := promtool.CombinedOutput(); err != nil || !strings.Contains(string(said), "SUCCESS") {
			t.Errorf("promtool %s: %v\n%s", arguments[0], err, said)
		}
	}
}
