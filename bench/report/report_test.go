package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/bench/report"
	"github.com/dca00107/lockstep/internal/test/leasetest"
)

var must = leasetest.Must

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
		if !strings.Contains(text, line+"\n") {
			t.Errorf("there is no line %s in\n%s", line, text)
		}
	}
	if strings.Contains(text, "unused") {
		t.Error("there is a table without figures")
	}
}

// TestNumber proves that three digits count.
func TestNumber(t *testing.T) {
	t.Parallel()
	for value, want := range map[float64]string{
		0: "0", 1: "1", 0.1234: "0.12", 9.876: "9.88", 12.34: "12.3", 123.4: "123", -1234: "-1,234", 1234567: "1,234,567", 999.6: "1,000",
	} {
		leasetest.Equal(t, fmt.Sprintf("Number(%v)", value), report.Number(value), want)
	}
}

// TestCSV proves that the file has a line for each cell, with the ratio.
func TestCSV(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	must(t, book().WriteCSV(&out))
	lines, err := csv.NewReader(&out).ReadAll()
	must(t, err)
	leasetest.Equal(t, "lines", len(lines), 1+2*(2*2*2+1))
	leasetest.Equal(t, "the line", strings.Join(lines[2], " "), "MariaDB loopback 1 key lockstep Run time us 3 165 157.5 172.5 1.5 1.5 1.5")
}

// TestCharts proves that every kind of chart is an SVG file with the names in it, and that
// nothing is drawn of nothing.
func TestCharts(t *testing.T) {
	t.Parallel()
	for i, c := range []report.Chart{
		{Metric: "time"},
		{Metric: "time", Case: "1 key"},
		{Metric: "time", Log: true},
		{Metric: "time", Lines: true, XLabel: "keys"},
		{Metric: "time", Lines: true, Log: true},
		{Metric: "bytes"},
		{Metric: "bytes", Log: true},
		{Metric: "bytes", Lines: true},
	} {
		drawing, err := book().DrawSVG(c, "The title", "MySQL")
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		words := wellFormed(t, drawing)
		wants := []string{"The title"}
		if c.Metric == "time" {
			wants = append(wants, "lockstep Run", "time, us")
		}
		leasetest.Says(t, fmt.Sprintf("%+v", c), words, wants...)
		if dir := os.Getenv("BENCH_CHARTS"); dir != "" { // for eyes
			if err := os.WriteFile(fmt.Sprintf("%s/chart%d.svg", dir, i), drawing, 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	if drawing, err := book().DrawSVG(report.Chart{Metric: "time"}, "", "Oracle"); drawing != nil || err != nil {
		t.Errorf("a chart of nothing: %s, %v", drawing, err)
	}
}

// wellFormed reads XML to its end, and returns its text.
func wellFormed(t *testing.T, text []byte) string {
	t.Helper()
	var words strings.Builder
	for decoder := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return words.String()
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if data, ok := token.(xml.CharData); ok {
			words.Write(data)
			words.WriteString("\n")
		}
	}
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
	if err != nil || table != want {
		t.Errorf("%v\n%s\nwant\n%s", err, table, want)
	}
	page, err := s.Put("before\n<!-- a -->\nold\n<!-- end -->\nafter\n<!-- b -->\nother\n<!-- end -->\n", table)
	if err != nil || page != "before\n<!-- a -->\n"+want+"<!-- end -->\nafter\n<!-- b -->\nother\n<!-- end -->\n" {
		t.Errorf("%v\n%s", err, page)
	}
}

func TestSummaryFails(t *testing.T) {
	for text, s := range map[string]report.Summary{
		"no figure of": {Letter: "a", Metric: "time", Links: []string{"1 ms"}, Contenders: []string{"Run"}},
		"has no marks": {Letter: "z", Metric: "time", Links: []string{"loopback"}, Contenders: []string{"Run"}},
	} {
		table, err := s.Table(strings.NewReader(figures))
		if err == nil {
			_, err = s.Put("<!-- a -->\n<!-- end -->\n", table)
		}
		leasetest.Fails(t, fmt.Sprintf("%+v", s), err, text)
	}
}
