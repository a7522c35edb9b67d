package report_test

import (
	"bytes"
	"encoding/csv"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

var must = testdb.Must

// book has three rounds of two contenders on two servers and two links.
func book() *report.Book {
	b := &report.Book{
		Metrics: []report.Metric{
			{Name: "time", Unit: "us", About: "How long it takes.", Ratio: true},
			{Name: "bytes", Unit: "B"},
			{Name: "unused", Unit: "s"},
		},
		Base: func(c report.Cell) report.Cell {
			c.Contender = "no lock"
			return c
		},
	}
	for round := range 3 {
		for _, engine := range []string{"MariaDB", "MySQL"} {
			for i, link := range []string{"loopback", "1 ms"} {
				for _, kase := range []string{"1 key", "1,000 keys"} {
					base := float64(1000*i + 100 + 10*round)
					b.Add(report.Cell{Engine: engine, Link: link, Case: kase, Contender: "no lock", Metric: "time"}, base)
					b.Add(report.Cell{Engine: engine, Link: link, Case: kase, Contender: "lockstep Run", Metric: "time"}, 1.5*base)
				}
			}
			b.Add(report.Cell{Engine: engine, Link: "loopback", Case: "1 key", Contender: "lockstep Run", Metric: "bytes"}, 0)
		}
	}
	return b
}

// TestTables proves what a table says: the median, the quartiles and the ratio, and
// nothing twice.
func TestTables(t *testing.T) {
	t.Parallel()
	text := book().Tables()
	for _, line := range []string{
		"**time, us.** How long it takes.",
		"| | | | loopback | 1 ms |",
		"|---|---|---|---|---|",
		"| MariaDB | 1 key | no lock | 110 (105 to 115) | 1,110 (1,105 to 1,115) |",
		"|  |  | lockstep Run | 165 (158 to 172), **1.50** | 1,665 (1,658 to 1,672), **1.50** |",
		"|  | 1,000 keys | no lock | 110 (105 to 115) | 1,110 (1,105 to 1,115) |",
		"| MySQL | 1 key | no lock | 110 (105 to 115) | 1,110 (1,105 to 1,115) |",
		"| | | loopback |",
		"| MySQL | lockstep Run | 0 |",
	} {
		testdb.ErrorIf(t, !strings.Contains(text, line+"\n"), "there is no line %s in\n%s", line, text)
	}
	testdb.ErrorIf(t, strings.Contains(text, "unused"), "there is a table without figures")
}

// TestCSV proves that the file has a line for each cell, with the ratio.
func TestCSV(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	must(t, book().WriteCSV(&out))
	lines := testdb.Got(csv.NewReader(&out).ReadAll())(t)
	testdb.Equal(t, "lines", len(lines), 1+2*(2*2*2+1))
	testdb.Equal(t, "the line", strings.Join(lines[2], " "), "MariaDB loopback 1 key lockstep Run time us 3 165 157.5 172.5 1.5 1.5 1.5")
}

const figures = `server,link,case,contender,metric,unit,rounds,median,q1,q3,ratio,ratio_q1,ratio_q3
MariaDB,loopback,,no lock,time,us,5,560.149,522,603,,,
MariaDB,loopback,,Run,time,us,5,1828.4,780,841,1.39971,1.36,1.49
MySQL,loopback,,no lock,time,us,5,60,52,63,,,
MySQL,loopback,,Run,time,us,5,90,78,84,1.5,1.3,1.6
MySQL,loopback,,Run,added,us,5,30,28,34,,,
`

func TestSummary(t *testing.T) {
	s := report.Summary{Letter: "a", Metric: "time", Links: []string{"loopback"}, Contenders: []string{"no lock", "Run"}}
	table, err := s.Table(strings.NewReader(figures))
	const want = "| | MariaDB, loopback | MySQL, loopback |\n|---|---|---|\n| no lock | 560 | 60 |\n| Run | 1,828, **1.40** | 90, **1.50** |\n"
	testdb.ErrorIf(t, err != nil || table != want, "%v\n%s\nwant\n%s", err, table, want)
	page, err := s.Put("before\n<!-- a -->\nold\n<!-- end -->\nafter\n<!-- b -->\nother\n<!-- end -->\n", table)
	testdb.ErrorIf(t, err != nil || page != "before\n<!-- a -->\n"+want+"<!-- end -->\nafter\n<!-- b -->\nother\n<!-- end -->\n", "%v\n%s", err, page)
}
