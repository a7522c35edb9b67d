package lockhttp

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// chart is a drawing of the last hour, for the template that makes an SVG of it.
type chart struct {
	ID, Title, Text string // Text says in words what is drawn
	Note            string // what the lines can't show
	Top, Half       string // the values at the upper end and in the middle
	Lines           []line
	Spans           []span
}

// span is a part of the hour, for those who read numbers.
type span struct {
	Name   string
	Values []string // of the lines, the most in the span
}

const spans = 6

// line is one of the values of a chart.
type line struct {
	Name, Last string
	Path       string // the attribute d
	values     []float64
	places     []int
}

// The size of the drawing.
const (
	width  = 360
	height = 80
)

func newLine[T any](name string, points []point[T], value func(T) float64) line {
	l := line{Name: name}
	for _, p := range points {
		l.places, l.values = append(l.places, p.x), append(l.values, value(p.sample))
	}
	return l
}

// newChart draws lines in one scale, whose values are written by a function.
func newChart(id, title string, write func(float64) string, lines ...line) chart {
	top := 0.0
	for _, l := range lines {
		for _, v := range l.values {
			top = math.Max(top, v)
		}
	}
	top = rounded(top)
	c := chart{ID: id, Title: title, Top: write(top), Half: write(top / 2), Lines: lines}
	var words []string
	for i := range c.Lines {
		l := &c.Lines[i]
		l.draw(top)
		if l.Last = "none"; len(l.values) > 0 {
			l.Last = write(l.values[len(l.values)-1])
			most := 0.0
			for _, v := range l.values {
				most = math.Max(most, v)
			}
			words = append(words, fmt.Sprintf("%s: %s at last, at most %s", l.Name, l.Last, write(most)))
		}
	}
	if c.Text = strings.Join(words, "; "); c.Text == "" {
		c.Text = "nothing was seen yet"
	}
	for i := range spans {
		part := span{Name: fmt.Sprintf("%d–%d min ago", (spans-i)*10, (spans-i-1)*10)}
		for _, l := range lines {
			part.Values = append(part.Values, l.most(i*int(steps)/spans, (i+1)*int(steps)/spans, write))
		}
		c.Spans = append(c.Spans, part)
	}
	return c
}

// most writes the highest value from one step to another.
func (l line) most(from, to int, write func(float64) string) string {
	most := -1.0
	for i, x := range l.places {
		if x >= from && x < to {
			most = math.Max(most, l.values[i])
		}
	}
	if most < 0 {
		return "–"
	}
	return write(most)
}

// draw makes the path. A step without a sample leaves a gap, and one alone is a dot.
func (l *line) draw(top float64) {
	var b strings.Builder
	for i, x := range l.places {
		command, dot := "L", ""
		if i == 0 || l.places[i-1] != x-1 {
			command, dot = "M", "h.01"
		}
		fmt.Fprintf(&b, "%s%d %.1f%s", command, x*width/int(steps), height-l.values[i]/top*height, dot)
	}
	l.Path = b.String()
}

// rounded returns the next of 1, 2, 5, 10, 20, 50 and so on, also below 1.
func rounded(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5} {
		if v <= factor*power {
			return factor * power
		}
	}
	return 10 * power
}

// number writes at least three digits, and all of those before the point.
func number(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func perSecond(v float64) string { return number(v) + "/s" }
