// Package report keeps what was measured, and makes tables, CSV files and charts of it.
package report

import (
	"encoding/csv"
	"io"
	"strconv"

	"github.com/dca00107/lockstep/bench/stats"
)

// Cell is one thing that is measured once a round.
type Cell struct {
	Engine    string
	Link      string
	Case      string // such as the number of goroutines, may be empty
	Contender string
	Metric    string
}

// Metric is a kind of figure.
type Metric struct {
	Name  string
	Unit  string
	About string
	Ratio bool // to the base is of interest
}

// Book has all the figures of a scenario, in the order in which they came.
type Book struct {
	Metrics []Metric
	// Base returns the cell that another one is compared with.
	Base func(Cell) Cell

	order   []Cell
	samples map[Cell][]float64
}

// Add writes down a round's figure.
func (b *Book) Add(cell Cell, value float64) {
	if b.samples == nil {
		b.samples = make(map[Cell][]float64)
	}
	if _, known := b.samples[cell]; !known {
		b.order = append(b.order, cell)
	}
	b.samples[cell] = append(b.samples[cell], value)
}

// Figure is a cell over all rounds.
type Figure struct {
	stats.Summary
	Ratio stats.Summary // to the base, by rounds; N is 0 where there is none
}

// Figure summarises a cell. N is 0 where nothing was measured.
func (b *Book) Figure(cell Cell) Figure {
	f := Figure{Summary: stats.Of(b.samples[cell]), Ratio: stats.Of(nil)}
	if b.Base == nil || !b.metric(cell.Metric).Ratio {
		return f
	}
	if base := b.Base(cell); base != cell {
		f.Ratio = stats.Of(stats.Ratios(b.samples[cell], b.samples[base]))
	}
	return f
}

func (b *Book) metric(name string) Metric {
	for _, m := range b.Metrics {
		if m.Name == name {
			return m
		}
	}
	return Metric{Name: name}
}

// WriteCSV writes a line for each cell.
func (b *Book) WriteCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	if err := w.Write([]string{"server", "link", "case", "contender", "metric", "unit", "rounds", "median", "q1", "q3", "ratio", "ratio_q1", "ratio_q3"}); err != nil {
		return err
	}
	for _, cell := range b.order {
		f := b.Figure(cell)
		line := []string{cell.Engine, cell.Link, cell.Case, cell.Contender, cell.Metric, b.metric(cell.Metric).Unit, strconv.Itoa(f.N)}
		for _, s := range []stats.Summary{f.Summary, f.Ratio} {
			for _, value := range []float64{s.Median, s.Q1, s.Q3} {
				text := ""
				if s.N > 0 {
					text = strconv.FormatFloat(value, 'g', 6, 64)
				}
				line = append(line, text)
			}
		}
		if err := w.Write(line); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// distinct returns a property of the cells that have it, each once, in their order.
func (b *Book) distinct(of func(Cell) (string, bool)) []string {
	var all []string
	seen := make(map[string]bool)
	for _, cell := range b.order {
		if value, has := of(cell); has && !seen[value] {
			seen[value] = true
			all = append(all, value)
		}
	}
	return all
}
