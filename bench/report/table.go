package report

import (
	"fmt"
	"math"
	"strings"
)

// row is one of a table.
type row struct{ engine, kase, contender string }

// Tables writes a table for each metric: a line for each server, case and contender, a
// column for each link.
func (b *Book) Tables() string {
	var out strings.Builder
	for _, metric := range b.Metrics {
		b.table(&out, metric)
	}
	return out.String()
}

func (b *Book) table(out *strings.Builder, metric Metric) {
	links := b.distinct(func(c Cell) (string, bool) { return c.Link, c.Metric == metric.Name })
	if len(links) == 0 {
		return
	}
	fmt.Fprintf(out, "**%s, %s.** %s\n\n", metric.Name, metric.Unit, metric.About)
	rows := b.rows(metric.Name)
	cases := len(b.distinct(func(c Cell) (string, bool) { return c.Case, c.Metric == metric.Name })) > 1
	out.WriteString("| | ")
	if cases {
		out.WriteString("| ")
	}
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(links, " | "), strings.Repeat("---|", len(links)+2+one(cases)))
	before := row{}
	for _, r := range rows {
		engine, kase := r.engine, r.kase
		if r.engine == before.engine { // said once
			engine = ""
			if r.kase == before.kase {
				kase = ""
			}
		}
		before = r
		fmt.Fprintf(out, "| %s ", engine)
		if cases {
			fmt.Fprintf(out, "| %s ", kase)
		}
		fmt.Fprintf(out, "| %s |", r.contender)
		for _, link := range links {
			fmt.Fprintf(out, " %s |", b.Figure(Cell{r.engine, link, r.kase, r.contender, metric.Name}))
		}
		out.WriteString("\n")
	}
	out.WriteString("\n")
}

// rows returns those of a metric: by server, then by case, then by contender, each in the
// order in which it came first.
func (b *Book) rows(metric string) []row {
	of := func(part func(Cell) string) []string {
		return b.distinct(func(c Cell) (string, bool) { return part(c), c.Metric == metric })
	}
	has := make(map[row]bool)
	for _, cell := range b.order {
		if cell.Metric == metric {
			has[row{cell.Engine, cell.Case, cell.Contender}] = true
		}
	}
	var rows []row
	for _, engine := range of(func(c Cell) string { return c.Engine }) {
		for _, kase := range of(func(c Cell) string { return c.Case }) {
			for _, contender := range of(func(c Cell) string { return c.Contender }) {
				if r := (row{engine, kase, contender}); has[r] {
					rows = append(rows, r)
				}
			}
		}
	}
	return rows
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// String is the median, the quartiles in parentheses, and the ratio.
func (f Figure) String() string {
	if f.N == 0 {
		return ""
	}
	text := Number(f.Median)
	if f.N > 1 && f.Q1 != f.Q3 {
		text += fmt.Sprintf(" (%s to %s)", Number(f.Q1), Number(f.Q3))
	}
	if f.Ratio.N > 0 {
		text += fmt.Sprintf(", **%.2f**", f.Ratio.Median)
	}
	return text
}

// Number writes a number with three digits that count.
func Number(value float64) string {
	switch size := math.Abs(value); {
	case math.IsNaN(value) || math.IsInf(value, 0):
		return "?"
	case size >= 100 || value == math.Trunc(value):
		return thousands(fmt.Sprintf("%.0f", value))
	case size >= 10:
		return fmt.Sprintf("%.1f", value)
	default:
		return fmt.Sprintf("%.2f", value)
	}
}

// thousands puts commas between groups of three digits.
func thousands(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}
