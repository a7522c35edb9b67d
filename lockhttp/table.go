package lockhttp

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dca00107/lockstep/internal/ops"
)

// table is what the template writes as one: a part of all rows.
type table struct {
	ID, Caption string
	Columns     []column
	Rows        []row
	Empty       string // what is said where there are no rows
	Pages       []link
	Part        string // which rows of how many
}

type column struct {
	Name, Href string
	Sorted     bool
}

type row struct {
	ID    string
	Class string
	Cells []cell
}

type cell struct {
	Label, Text, Href string
	Time              string // the exact one, where Text says how long ago it was
	Head              bool   // names the row
	Forms             []form // what the viewer may do about it
}

// perPage is how many rows a page shows.
const perPage = 100

// newTable makes a table of n rows, those of the page that the viewer wants. The columns
// are words; the first is of keys.
func (c *call) newTable(id, caption, empty, columns string, n int, line func(i int) row) *table {
	t := &table{ID: id, Caption: caption, Empty: empty}
	for _, name := range strings.Split(columns, ", ") {
		t.Columns = append(t.Columns, column{Name: name})
	}
	last := max(0, n-1) / perPage
	at, _ := strconv.Atoi(c.param("page")) // 0 where it is none
	at = min(max(at, 1), last+1) - 1
	for i := at * perPage; i < min(n, (at+1)*perPage); i++ {
		line := line(i)
		for j := range line.Cells {
			line.Cells[j].Label = t.Columns[j].Name
		}
		t.Rows = append(t.Rows, line)
	}
	if n > perPage {
		t.Part = fmt.Sprintf("%d to %d of %d", at*perPage+1, min(n, (at+1)*perPage), n)
		turn := func(text string, to int) {
			if to >= 0 && to <= last && to != at {
				t.Pages = append(t.Pages, link{Text: text, Href: c.with("page", strconv.Itoa(to+1))})
			}
		}
		turn("First", 0)
		turn("Previous", at-1)
		turn("Next", at+1)
		turn("Last", last)
	}
	return t
}

// sorting makes columns of a table links that sort it, by the words of the address, and
// returns by which it is sorted: at first the first of them.
func (c *call) sorting(t *table, words map[string]string, first string) {
	by := c.sortedBy(words, first)
	for i := range t.Columns {
		if word, can := words[t.Columns[i].Name]; can {
			t.Columns[i].Href, t.Columns[i].Sorted = c.with("sort", word), word == by
		}
	}
}

func (c *call) sortedBy(words map[string]string, first string) string {
	for _, word := range words {
		if c.param("sort") == word {
			return word
		}
	}
	return first
}

// with returns the address of this page with another parameter, from its first rows on.
func (c *call) with(name, value string) string {
	query := url.Values{}
	for _, kept := range []string{"q", "sort", "key", "slot"} {
		if v := c.query.Get(kept); v != "" {
			query.Set(kept, v)
		}
	}
	query.Set(name, value)
	return "?" + query.Encode()
}

// keyHref is the address of the page of a key.
func keyHref(key string) string { return "key?" + url.Values{"key": {key}}.Encode() }

func slotHref(slot int64) string { return fmt.Sprintf("key?slot=%d", slot) }

func text(s string) cell { return cell{Text: shown(s)} }

func keyCell(key string) cell { return cell{Text: ops.Shown(key), Href: keyHref(key), Head: true} }

// idOf makes an identifier of an element, which has no spaces.
func idOf(parts ...any) string {
	var words []string
	for _, part := range parts {
		words = append(words, url.QueryEscape(fmt.Sprint(part)))
	}
	return strings.Join(words, "-")
}

// shown is printable, and something.
func shown(s string) string {
	if s == "" {
		return "–"
	}
	return printable(s)
}

// printable escapes what can't be seen, or moves what stands beside it: keys and notes are
// what programs choose.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}

func clipped(s string, n int) string {
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return s
}

// when writes a time for people.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// exactly is how an exact time is written.
const exactly = "2006-01-02 15:04:05.000 UTC"

// ago says how long ago something was, or in what time it will be.
func ago(d time.Duration) string {
	form := "%s ago"
	if d < 0 {
		form, d = "in %s", -d
	}
	for _, unit := range []struct {
		name string
		is   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if d >= unit.is {
			return fmt.Sprintf(form, fmt.Sprintf("%d %s", d/unit.is, unit.name))
		}
	}
	return fmt.Sprintf(form, fmt.Sprintf("%d s", d/time.Second))
}

// at shows a time of the server's clock.
func (c *call) at(t time.Time) cell {
	if t.IsZero() {
		return text("")
	}
	return cell{Text: ago(c.Taken.Sub(t)), Time: t.UTC().Format(exactly)}
}

// matches tells whether one of the texts has what the viewer searches.
func (c *call) matches(texts ...string) bool {
	wanted := strings.ToLower(c.param("q"))
	for _, text := range texts {
		if strings.Contains(strings.ToLower(text), wanted) {
			return true
		}
	}
	return false
}
