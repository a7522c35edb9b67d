package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// printTable prints the sales of one server.
func printTable(out io.Writer, engine string, c config, results []result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d buyers over %d connections, %d items, %v under the lock\n", engine, c.buyers, c.connections, c.stock, c.takes)
	fmt.Fprintf(&b, "%9s %9s %9s %10s %10s %9s\n", "segments", "sold", "purchases", "collected", "took", "items/s")
	for _, r := range results {
		fmt.Fprintf(&b, "%9d %9d %9d %10d %10v %9.0f\n", r.segments, r.items, r.purchases, r.collected, r.took.Round(time.Millisecond), r.perSecond())
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// The measures of the chart.
const (
	barWidth, barGap = 90, 50
	chartHeight      = 220
	chartTop         = 60
	chartBottom      = 50
)

// chart draws the throughput of each sale as a bar.
func chart(engine string, results []result) string {
	most := 1.0
	for _, r := range results {
		most = max(most, r.perSecond())
	}
	width := barGap + len(results)*(barWidth+barGap)
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"14\">\n",
		width, chartTop+chartHeight+chartBottom)
	fmt.Fprintf(&b, "  <rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n")
	fmt.Fprintf(&b, "  <text x=\"%d\" y=\"24\" text-anchor=\"middle\">%s: items per second</text>\n", width/2, engine)
	for i, r := range results {
		height := int(r.perSecond() / most * chartHeight)
		x, y := barGap+i*(barWidth+barGap), chartTop+chartHeight-height
		fmt.Fprintf(&b, "  <rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"steelblue\"/>\n", x, y, barWidth, height)
		fmt.Fprintf(&b, "  <text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n", x+barWidth/2, y-8, r.perSecond())
		fmt.Fprintf(&b, "  <text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x+barWidth/2, chartTop+chartHeight+20, segmentsText(r.segments))
	}
	fmt.Fprintf(&b, "  <line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"black\"/>\n", barGap/2, chartTop+chartHeight, width-barGap/2, chartTop+chartHeight)
	b.WriteString("</svg>\n")
	return b.String()
}

func segmentsText(n int) string {
	if n == 1 {
		return "1 segment"
	}
	return fmt.Sprintf("%d segments", n)
}
