package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dca00107/lockstep/internal/ops"
)

// printable escapes what would change a terminal: keys and notes are what programs choose.
func printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\n`, "\n")
}

// cell is printable without line breaks, and something.
func cell(text string) string {
	text = strings.ReplaceAll(printable(text), "\n", `\n`)
	if text == "" {
		return "-"
	}
	return text
}

// clipped cuts a text to so many characters.
func clipped(text string, n int) string {
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-3]) + "..."
	}
	return text
}

// table writes rows below a head.
func table(w io.Writer, head string, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, strings.ReplaceAll(head, " ", "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = cell(text)
		}
		_, _ = fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	_ = t.Flush()
}

// printJSON writes one object.
func (a *app) printJSON(v any) error {
	encoder := json.NewEncoder(a.out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// gaps says what could not be seen.
func (a *app) gaps(gaps []ops.Gap) {
	for _, g := range gaps {
		_, _ = fmt.Fprintln(a.err, "Not seen:", printable(g.String()))
	}
}

// found writes what was found as JSON, or what could not be seen. It is done where that is all.
func (a *app) found(form any, n int, gaps []ops.Gap, none string, args ...any) (done bool, err error) {
	if a.json {
		err = a.printJSON(form)
	} else {
		a.gaps(gaps)
	}
	if n > 0 || err != nil {
		return a.json || err != nil, err
	}
	code := unseen(gaps)
	if code != nothing {
		none = "it can't be seen: as far as it can, " + none
	}
	return true, failed(code, none, args...)
}

// unseen is the exit code where nothing is found: another one if there may be what can't be seen.
func unseen(gaps []ops.Gap) int {
	code := nothing
	for _, g := range gaps {
		switch {
		case g.Hides && g.Denied:
			return declined
		case g.Hides:
			code = trouble
		}
	}
	return code
}

// output is where a command writes. It keeps the first error, which is the command's: what is lost
// behind a pipe or on a full disk must not look like success.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// say writes a line for people: with --json not among the JSON.
func (a *app) say(format string, args ...any) {
	w := a.out
	if a.json {
		w = a.err
	}
	_, _ = fmt.Fprintln(w, printable(fmt.Sprintf(format, args...)))
}

// when writes a time of the server.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

func number(n int) string { return strconv.Itoa(n) }
