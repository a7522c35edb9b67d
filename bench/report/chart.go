package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart says what is drawn of a metric: bars for the contenders, a colour for each link
// or case, or lines over the cases, which are numbers then.
type Chart struct {
	Name   string // the file's, after the scenario's letter and the server
	Metric string
	Lines  bool
	Log    bool   // the axis of the figures is logarithmic
	Case   string // of bars: only this one; empty for all
	XLabel string // of lines
}

// DrawSVG draws a chart for one server. It returns nil where nothing was measured for it.
func (b *Book) DrawSVG(c Chart, title, engine string) ([]byte, error) {
	p, width, height, err := b.plot(c, title, engine)
	if p == nil || err != nil {
		return nil, err
	}
	canvas := vgsvg.New(width, height)
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	_, err = canvas.WriteTo(&out)
	return out.Bytes(), err
}

func (b *Book) plot(c Chart, title, engine string) (p *plot.Plot, width, height vg.Length, err error) {
	series := b.series(c, engine)
	if len(series) == 0 {
		return nil, 0, 0, nil
	}
	p = plot.New()
	p.Title.Text = title
	p.BackgroundColor = color.White
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	metric := b.metric(c.Metric)
	label := metric.Name + ", " + metric.Unit
	add := b.bars
	width = 22 * vg.Centimeter
	if c.Lines {
		add = b.lines
		height = 12 * vg.Centimeter
		p.Y.Label.Text, p.X.Label.Text = label, c.XLabel
	} else {
		height = vg.Length(len(series)*len(series[0].points))*0.5*vg.Centimeter + 3*vg.Centimeter
		p.X.Label.Text = label
	}
	if err := add(p, c, series); err != nil {
		return nil, 0, 0, fmt.Errorf("chart of %s on %s: %w", c.Metric, engine, err)
	}
	if c.Lines || c.Log {
		logarithmic(&p.X)
	}
	switch {
	case c.Lines && c.Log:
		logarithmic(&p.Y)
	case c.Lines:
		p.Y.Min = 0
	}
	if c.Lines {
		p.X.Max *= 10 // the legend's place
	}
	return p, width, height, nil
}

// logarithmic changes an axis, unless nothing was drawn on it.
func logarithmic(axis *plot.Axis) {
	if axis.Min <= 0 || axis.Min > axis.Max {
		return
	}
	axis.Min = math.Pow(10, math.Floor(math.Log10(axis.Min)))
	axis.Max = math.Pow(10, math.Ceil(math.Log10(axis.Max)))
	axis.Scale = plot.LogScale{}
	axis.Tick.Marker = plot.LogTicks{Prec: -1}
}

// series is what has one colour.
type series struct {
	name   string
	points []point
}

type point struct {
	name string
	x    float64 // of lines
	Figure
}

// series returns, for bars, the links or the cases, with a point for each contender; for
// lines the contenders on the first link, with a point for each case.
func (b *Book) series(c Chart, engine string) []series {
	in := func(cell Cell) bool {
		return cell.Engine == engine && cell.Metric == c.Metric && (c.Case == "" || cell.Case == c.Case)
	}
	links := b.distinct(func(cell Cell) (string, bool) { return cell.Link, in(cell) })
	cases := b.distinct(func(cell Cell) (string, bool) { return cell.Case, in(cell) })
	contenders := b.distinct(func(cell Cell) (string, bool) { return cell.Contender, in(cell) })
	if len(links) == 0 {
		return nil
	}
	var all []series
	if c.Lines {
		for _, contender := range contenders {
			s := series{name: contender}
			for _, kase := range cases {
				s.points = append(s.points, point{kase, leadingNumber(kase), b.Figure(Cell{engine, links[0], kase, contender, c.Metric})})
			}
			all = append(all, s)
		}
		return all
	}
	for _, kase := range cases {
		if len(cases) > 1 {
			links = links[:1]
		}
		for _, link := range links {
			s := series{name: link}
			if len(cases) > 1 {
				s.name = kase
			}
			for _, contender := range contenders {
				s.points = append(s.points, point{name: contender, Figure: b.Figure(Cell{engine, link, kase, contender, c.Metric})})
			}
			all = append(all, s)
		}
	}
	return all
}

// leadingNumber reads the number with which a case begins: "1,000 keys".
func leadingNumber(text string) float64 {
	var number float64
	for _, r := range text {
		switch {
		case r >= '0' && r <= '9':
			number = number*10 + float64(r-'0')
		case r != ',':
			return number
		}
	}
	return number
}

// bars draws them from left to right, the first contender on top.
func (b *Book) bars(p *plot.Plot, c Chart, all []series) error {
	names := make([]string, 0, len(all[0].points))
	for _, point := range slices.Backward(all[0].points) {
		names = append(names, point.name)
	}
	for i, s := range all {
		const thick = 0.36 * vg.Centimeter
		offset := vg.Length(float64(len(all)-1)/2-float64(i)) * thick
		if err := s.draw(p, c.Log, offset, thick, plotutil.SoftColors[i%len(plotutil.SoftColors)]); err != nil {
			return err
		}
	}
	p.NominalY(names...)
	return nil
}

// draw draws bars with whiskers for the quartiles. A logarithmic axis has no zero for
// bars to begin at: there are dots instead.
func (s series) draw(p *plot.Plot, log bool, offset, thick vg.Length, colour color.Color) error {
	values := make(plotter.Values, len(s.points))
	var medians whiskers
	for j, point := range s.points {
		at := len(s.points) - 1 - j
		if point.N > 0 && (point.Q1 > 0 || !log) {
			values[at] = point.Median
			medians.add(float64(at), point.Figure)
		}
	}
	if len(medians.XYs) == 0 {
		return nil
	}
	if log {
		dots, err := plotter.NewScatter(medians)
		if err != nil {
			return err
		}
		dots.Color, dots.Shape, dots.Radius = colour, draw.CircleGlyph{}, vg.Points(4)
		p.Add(&shifted{dots, offset})
		p.Legend.Add(s.name, dots)
	} else {
		bars, err := plotter.NewBarChart(values, thick)
		if err != nil {
			return err
		}
		bars.Horizontal, bars.Color, bars.Offset, bars.LineStyle.Width = true, colour, offset, 0
		p.Add(bars)
		p.Legend.Add(s.name, bars)
	}
	quartiles, err := plotter.NewXErrorBars(medians)
	if err != nil {
		return err
	}
	p.Add(&shifted{quartiles, offset})
	return nil
}

// lines draws the medians over the cases.
func (b *Book) lines(p *plot.Plot, _ Chart, all []series) error {
	for i, s := range all {
		var xys plotter.XYs
		for _, point := range s.points {
			if point.N > 0 && point.Median > 0 && point.x > 0 {
				xys = append(xys, plotter.XY{X: point.x, Y: point.Median})
			}
		}
		if len(xys) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color, points.Color = plotutil.Color(i), plotutil.Color(i)
		line.Dashes, points.Shape = plotutil.Dashes(i/len(plotutil.DefaultColors)), plotutil.Shape(i)
		p.Add(line, points)
		p.Legend.Add(s.name, line, points)
	}
	return nil
}

// whiskers are points with the quartiles beside them.
type whiskers struct {
	plotter.XYs
	plotter.XErrors
}

func (w *whiskers) add(at float64, f Figure) {
	w.XYs = append(w.XYs, plotter.XY{X: f.Median, Y: at})
	w.XErrors = append(w.XErrors, struct{ Low, High float64 }{f.Q1 - f.Median, f.Q3 - f.Median})
}

// shifted draws beside the place of the value, as bars have it.
type shifted struct {
	ranged
	up vg.Length
}

// ranged is a plotter that says what range it needs.
type ranged interface {
	plot.Plotter
	plot.DataRanger
}

func (s *shifted) Plot(canvas draw.Canvas, p *plot.Plot) {
	canvas.Min.Y += s.up
	canvas.Max.Y += s.up
	s.ranged.Plot(canvas, p)
}
