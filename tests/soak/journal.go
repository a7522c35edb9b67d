package main

import (
	"encoding/csv"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"
)

// figure names one of the figures: what of which place.
type figure struct {
	place, name string
}

// journal keeps the figures, and writes them into a file as they come.
type journal struct {
	file   *os.File
	csv    *csv.Writer
	order  []figure
	values map[figure][]float64
	from   map[figure][]time.Duration
	most   int
}

// newJournal makes a journal for so many values of each figure. It has the memory for them
// from the beginning, so that it doesn't grow itself.
func newJournal(path string, most int) (*journal, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	j := &journal{file: file, csv: csv.NewWriter(file), values: make(map[figure][]float64), from: make(map[figure][]time.Duration), most: most}
	return j, j.csv.Write([]string{"seconds", "place", "figure", "value"})
}

// note notes a figure at a time since the beginning.
func (j *journal) note(at time.Duration, place, name string, value float64) {
	f := figure{place, name}
	if _, known := j.values[f]; !known {
		j.order = append(j.order, f)
		j.values[f], j.from[f] = make([]float64, 0, j.most), make([]time.Duration, 0, j.most)
	}
	j.values[f] = append(j.values[f], value)
	j.from[f] = append(j.from[f], at)
	_ = j.csv.Write([]string{strconv.Itoa(int(at.Seconds())), place, name, strconv.FormatFloat(value, 'f', -1, 64)}) // flush says
}

// flush writes what was noted.
func (j *journal) flush() error {
	j.csv.Flush()
	return j.csv.Error()
}

// after are the values of a figure from a time on.
func (j *journal) after(f figure, start time.Duration) []float64 {
	for i, at := range j.from[f] {
		if at >= start {
			return j.values[f][i:]
		}
	}
	return nil
}

// last is the last value of a figure.
func (j *journal) last(place, name string) float64 {
	values := j.values[figure{place, name}]
	if len(values) == 0 {
		return 0
	}
	return values[len(values)-1]
}

func (j *journal) close() error {
	err := j.flush()
	if closing := j.file.Close(); err == nil {
		err = closing
	}
	return err
}

// noteAll notes figures of one place.
func (j *journal) noteAll(at time.Duration, place string, figures map[string]float64) {
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		j.note(at, place, name, figures[name])
	}
}
