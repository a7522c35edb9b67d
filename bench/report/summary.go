package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Summary is a small table of a page: a line for each contender, a column for each server and
// link, with medians and ratios.
type Summary struct {
	Letter     string // of the scenario, and the mark of the table on the page
	Case       string
	Metric     string
	Links      []string
	Contenders []string
}

// Table writes it from the CSV file of the scenario. An error says which figure isn't there.
func (s Summary) Table(figures io.Reader) (string, error) {
	lines, err := csv.NewReader(figures).ReadAll()
	if err != nil {
		return "", err
	}
	var engines []string
	cells := make(map[Cell]string)
	for _, line := range lines[min(1, len(lines)):] {
		if !slices.Contains(engines, line[0]) {
			engines = append(engines, line[0])
		}
		figure, err := figure(line[7], line[10])
		if err != nil {
			return "", err
		}
		cells[Cell{Engine: line[0], Link: line[1], Case: line[2], Contender: line[3], Metric: line[4]}] = figure
	}
	head, rule := "| |", "|---|"
	rows := make([]string, len(s.Contenders))
	for i, contender := range s.Contenders {
		rows[i] = "| " + contender + " |"
	}
	for _, engine := range engines {
		for _, link := range s.Links {
			head, rule = head+" "+engine+", "+link+" |", rule+"---|"
			for i, contender := range s.Contenders {
				cell := Cell{Engine: engine, Link: link, Case: s.Case, Contender: contender, Metric: s.Metric}
				if cells[cell] == "" {
					return "", fmt.Errorf("%s.csv has no figure of %+v", s.Letter, cell)
				}
				rows[i] += " " + cells[cell] + " |"
			}
		}
	}
	return head + "\n" + rule + "\n" + strings.Join(rows, "\n") + "\n", nil
}

func figure(median, ratio string) (string, error) {
	m, err := strconv.ParseFloat(median, 64)
	if err != nil || ratio == "" {
		return Number(m), err
	}
	r, err := strconv.ParseFloat(ratio, 64)
	return fmt.Sprintf("%s, **%.2f**", Number(m), r), err
}

// Put replaces what stands on a page between the marks <!-- LETTER --> and <!-- end -->.
func (s Summary) Put(page, table string) (string, error) {
	before, rest, begun := strings.Cut(page, "<!-- "+s.Letter+" -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end -->\n")
	if !begun || !ended {
		return "", fmt.Errorf("the page has no marks for table %s", s.Letter)
	}
	return before + "<!-- " + s.Letter + " -->\n" + table + "<!-- end -->\n" + after, nil
}
