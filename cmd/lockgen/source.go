package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// source is a query as its .sql file has it.
type source struct {
	name, kind string // kind is ":exec"
	place      place
	locks      []item
	none       bool // lock: none, because ...
	vouched    bool // because ...: it says why what lockgen can't prove is right
}

// item is a key of an annotation: Family(parameter, ...).
type item struct {
	place  place
	shared bool
	family string
	params []string
}

func (i item) String() string { return i.family + "(" + strings.Join(i.params, ", ") + ")" }

var (
	nameComment = regexp.MustCompile(`^\s*name:\s*(\w+)\s+(:\w+)\s*$`)
	annotation  = regexp.MustCompile(`^\s*(lock|rlock):\s*(.*?)\s*$`)
	reason      = regexp.MustCompile(`,\s*because\s+\S.*$`)
	oneItem     = regexp.MustCompile(`^(\w+)\(\s*(\w+(?:\s*,\s*\w+)*)\s*\)\s*(?:,\s*|$)`)

	// What may be meant as an annotation, in any place and form.
	lookalike = regexp.MustCompile(`(?im)^\W*[rx]?locks?\s*:|\b[rx]?locks?\s*:?\s*(none\b|\w+\(\s*\w)|^\s*,?\s*\w+\(\w+\)\s*,?\s*$`)
)

// readQueries reads the queries of .sql files. An annotation that isn't where and as it
// must be is a problem, never ignored: sqlc hands a comment behind a semicolon to the
// next query.
func readQueries(files []string) (map[string]*source, problems, error) {
	queries := map[string]*source{}
	var found problems
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, fmt.Errorf("lockgen: %w", err)
		}
		for _, s := range statements(string(text)) {
			q := s.query(filepath.Base(file), &found)
			if q == nil {
				continue
			}
			if before := queries[q.name]; before != nil {
				found.add(q.place, "%s has the name of a query of %s, and sqlc drops one of them", q.name, before.place)
			}
			queries[q.name] = q
		}
	}
	return queries, found, nil
}

// query reads the comments of a statement. It returns nil for one without a name.
func (s *statement) query(file string, found *problems) *source {
	var q *source
	for _, c := range s.comments {
		at := place{file, c.line}
		if m := nameComment.FindStringSubmatch(c.text); m != nil && !c.inside && q == nil {
			q = &source{name: m[1], kind: m[2], place: at}
			continue
		}
		m := annotation.FindStringSubmatch(c.text)
		switch {
		case m == nil && !lookalike.MatchString(c.text):
		case c.inside, q == nil:
			found.add(at, "the annotation %q must stand directly below the -- name: line of its query", clip(c.text))
		case !c.alone:
			found.add(at, "the annotation %q must have a line of its own that begins with --", clip(c.text))
		case m == nil:
			found.add(at, "can't read the annotation %q: write -- lock: Family(parameter), or -- rlock: Family(parameter), or -- lock: none, because ..., on one line", clip(c.text))
		default:
			q.annotate(at, m[1], m[2], found)
		}
	}
	return q
}

func clip(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return text
}

// annotate reads what stands behind lock: or rlock:.
func (q *source) annotate(at place, verb, text string, found *problems) {
	if because := reason.FindStringIndex(text); because != nil {
		text, q.vouched = strings.TrimSpace(text[:because[0]]), true
	}
	switch {
	case verb == "lock" && text == "none" && q.vouched:
		q.none = true
	case strings.HasPrefix(text, "none"):
		found.add(at, "write the reason: -- lock: none, because ...")
	case text == "", strings.HasSuffix(text, ","):
		found.add(at, "the annotation ends too early: all its keys stand on one line")
	}
	for text != "" && !strings.HasPrefix(text, "none") {
		m := oneItem.FindStringSubmatch(text)
		if m == nil {
			found.add(at, "can't read %q: write Family(parameter)", text)
			return
		}
		params := strings.Split(m[2], ",")
		for i := range params {
			params[i] = strings.TrimSpace(params[i])
		}
		q.locks = append(q.locks, item{place: at, shared: verb == "rlock", family: m[1], params: params})
		text = text[len(m[0]):]
	}
	if q.none && len(q.locks) > 0 {
		found.add(at, "%s has keys and none at once", q.name)
	}
}
