package report

import (
	"strings"
	"testing"
)

const figures = `server,link,case,contender,metric,unit,rounds,median,q1,q3,ratio,ratio_q1,ratio_q3
MariaDB,loopback,,no lock,time,us,5,560.149,522,603,,,
MariaDB,loopback,,Run,time,us,5,1828.4,780,841,1.39971,1.36,1.49
MySQL,loopback,,no lock,time,us,5,60,52,63,,,
MySQL,loopback,,Run,time,us,5,90,78,84,1.5,1.3,1.6
MySQL,loopback,,Run,added,us,5,30,28,34,,,
`

func TestSummary(t *testing.T) {
	s := Summary{Letter: "a", Metric: "time", Links: []string{"loopback"}, Contenders: []string{"no lock", "Run"}}
	table, err := s.Table(strings.NewReader(figures))
	const want = "| | MariaDB, loopback | MySQL, loopback |\n|---|---|---|\n| no lock | 560 | 60 |\n| Run | 1,828, **1.40** | 90, **1.50** |\n"
	if err != nil || table != want {
		t.Errorf("%v\n%s\nwant\n%s", err, table, want)
	}
	page, err := s.Put("before\n<!-- a -->\nold\n<!-- end -->\nafter\n<!-- b -->\nother\n<!-- end -->\n", table)
	if err != nil || page != "before\n<!-- a -->\n"+want+"<!-- end -->\nafter\n<!-- b -->\nother\n<!-- end -->\n" {
		t.Errorf("%v\n%s", err, page)
	}
}

func TestSummaryFails(t *testing.T) {
	for text, s := range map[string]Summary{
		"no figure of": {Letter: "a", Metric: "time", Links: []string{"1 ms"}, Contenders: []string{"Run"}},
		"has no marks": {Letter: "z", Metric: "time", Links: []string{"loopback"}, Contenders: []string{"Run"}},
	} {
		table, err := s.Table(strings.NewReader(figures))
		if err == nil {
			_, err = s.Put("<!-- a -->\n<!-- end -->\n", table)
		}
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", s, err, text)
		}
	}
}
