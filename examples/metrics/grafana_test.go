package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// grafana is where the dashboard and the alerts are.
const grafana = "../../contrib/grafana/"

// queriesOf returns the queries of the dashboard.
func queriesOf(t *testing.T) (queries []string) {
	t.Helper()
	text, err := os.ReadFile(grafana + "dashboard.json")
	check(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Query any }
		}
	}
	check(t, json.Unmarshal(text, &dashboard))
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("the panel %q asks for nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			queries = append(queries, target.Expr)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if query, ok := variable.Query.(map[string]any); ok {
			queries = append(queries, query["query"].(string))
		}
	}
	return queries
}

var (
	aName    = regexp.MustCompile(`\b(lockstep|error)_\w+`)
	aMatcher = regexp.MustCompile(`(\w+)=~?"([^"$]+)"`)
)

// checkQueries compares the dashboard and the alerts with a scrape that has everything: each
// name in them is a metric or a label that is emitted, each label they choose by has the
// value, and each metric is on the dashboard.
func checkQueries(t *testing.T, emitted map[string]string) {
	t.Helper()
	known, metrics := make(map[string]bool), make(map[string]bool)
	for line := range emitted {
		name, labels, _ := strings.Cut(line, "{")
		known[name] = true
		if strings.HasPrefix(name, "lockstep_") {
			metrics[strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")] = true
		}
		for _, pair := range aMatcher.FindAllStringSubmatch(labels, -1) {
			known[pair[1]], known[pair[1]+"="+pair[2]] = true, true
		}
	}
	queries := queriesOf(t)
	for metric := range metrics {
		if !slices.ContainsFunc(queries, func(query string) bool { return strings.Contains(query, metric) }) {
			t.Errorf("the dashboard doesn't show %s", metric)
		}
	}
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml"} {
		text, err := os.ReadFile(grafana + file)
		check(t, err)
		queries = append(queries, string(text))
	}
	for _, query := range queries {
		for _, name := range aName.FindAllString(query, -1) {
			if !known[name] {
				t.Errorf("nothing emits %s, for which this asks: %s", name, query)
			}
		}
	}
	// What alerts_test.yaml has records of is invented, but what the others choose is not.
	for _, query := range queries[:len(queries)-1] {
		for _, pair := range aMatcher.FindAllStringSubmatch(query, -1) {
			if !known[pair[1]+"="+pair[2]] {
				t.Errorf("nothing emits %s, for which this asks: %s", pair[0], query)
			}
		}
	}
	if len(queries) < 20 || len(metrics) < 16 {
		t.Errorf("%d queries and %d metrics", len(queries), len(metrics))
	}
}
