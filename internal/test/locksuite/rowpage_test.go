package locksuite_test

import (
	"database/sql"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/internal/test/tools/checkqueries"
)

var updatePage = flag.Bool("update", false, "write what TestRowLocks finds into its page")

const (
	lockPage   = "../../../docs/reference/statements-in-your-transaction.md"
	tableBegin = "| verb | key | statements | locks on MariaDB | locks on MySQL |\n|---|---|---|---|---|\n"
)

// compare compares the page with what was found. A server of another version may send fewer
// statements than are on the page.
func (f *findings) compare(t *testing.T) {
	t.Helper()
	page := leasetest.Got(os.ReadFile(lockPage))(t)
	head, table, found := strings.Cut(string(page), tableBegin)
	testdb.FatalIf(t, !found, "%s has no table", lockPage)
	table, rest, _ := strings.Cut(table, "\n\n")
	both := len(testdb.Engines()) == 2
	if *updatePage && both {
		var lines []string
		for _, row := range f.inOrder() {
			lines = append(lines, "| "+strings.Join(row.cells(), " | ")+" |")
		}
		check(t, os.WriteFile(lockPage, []byte(head+tableBegin+strings.Join(lines, "\n")+"\n\n"+rest), 0o644))
		return
	}
	lines := make(map[string][]string)
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		lines[strings.Join(cells[:min(2, len(cells))], ", ")] = cells
	}
	for _, row := range f.inOrder() {
		cells, name := row.cells(), row.verb+", "+row.key
		if len(lines[name]) != len(cells) || !row.isOn(lines[name]) {
			t.Errorf("%s: the line of %s isn't true: write the page by -update. It was found:\n| %s |", lockPage, name, strings.Join(cells, " | "))
		}
		delete(lines, name)
	}
	for name := range lines {
		t.Errorf("%s: nothing was found of %s: write the page by -update", lockPage, name)
	}
	if both && os.Getenv("LOCKSTEP_PROCEDURES") == "" {
		f.isComplete(t)
	}
}

// inOrder returns the findings in the order of the verbs.
func (f *findings) inOrder() []*finding {
	place := func(row *finding) int {
		return slices.IndexFunc(verbs, func(v verb) bool { return v.name == row.verb && v.key == row.key })
	}
	slices.SortFunc(f.rows, func(a, b *finding) int { return place(a) - place(b) })
	return f.rows
}

// statements are the names of the statements on all servers.
func (row *finding) statements() (names []string) {
	for _, s := range row.on {
		names = sorted(names, s.statements)
	}
	return names
}

// cells are the cells of a finding.
func (row *finding) cells() []string {
	statements := row.statements()
	for i, name := range statements {
		statements[i] = "`" + name + "`"
	}
	return []string{row.verb, row.key, strings.Join(statements, " "), row.on[testdb.MariaDB].text(), row.on[testdb.MySQL].text()}
}

// isOn tells whether the cells of the page are true of a finding.
func (row *finding) isOn(page []string) bool {
	cells, listed := row.cells(), strings.Fields(page[2])
	for _, name := range strings.Fields(cells[2]) {
		if !slices.Contains(listed, name) {
			return false
		}
	}
	return (row.on[testdb.MariaDB] == nil || cells[3] == page[3]) && (row.on[testdb.MySQL] == nil || cells[4] == page[4])
}

// text is the cell of the locks: those at every level, or where they differ by level.
func (s *seen) text() string {
	if s == nil {
		return ""
	}
	at := func(level sql.IsolationLevel) string {
		if len(s.locks[level]) == 0 {
			return "none"
		}
		return strings.Join(s.locks[level], ", ")
	}
	text, before := at(levels[0]), at(levels[0])
	for i, level := range levels {
		now, words := at(level), "from "
		if i == len(levels)-1 {
			words = "at "
		}
		if now != before {
			text, before = text+"; "+words+strings.ToUpper(level.String())+": "+now, now
		}
	}
	return text
}

// isComplete checks that every query that is said to run in callers' transactions was seen there,
// no other, and every exception.
func (f *findings) isComplete(t *testing.T) {
	t.Helper()
	queries := leasetest.Got(checkqueries.Places("../../../queries"))(t)
	var sent []string
	for _, row := range f.rows {
		names := row.statements()
		sent = append(sent, names...)
		for _, name := range names {
			if query, ok := queries[name]; ok && !query.InCallers || strings.Contains(name, " ") {
				t.Errorf("%s, %s sends %s, which is said to run in no caller's transaction", row.verb, row.key, name)
			}
		}
	}
	for name, query := range queries {
		testdb.ErrorIf(t, query.InCallers && !slices.Contains(sent, name), "no verb has sent %s, which is said to run in callers' transactions", name)
	}
	for _, g := range gaps {
		testdb.ErrorIf(t, !slices.Contains(f.gaps, g.verb+", "+g.key), "%s, %s locks no gap: it needs no exception", g.verb, g.key)
	}
}
