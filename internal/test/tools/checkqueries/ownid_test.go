package checkqueries

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
)

var (
	setsID  = regexp.MustCompile(`(?i)\bLAST_INSERT_ID\s*\(\s*[^\s)]`)
	readsID = regexp.MustCompile(`(?i)\bLAST_INSERT_ID\s*\(\s*\)`)
)

// readsOwnID reports whether one of the statements of a text reads the LAST_INSERT_ID() that it
// sets itself.
func readsOwnID(text string) bool {
	return slices.ContainsFunc(strings.Split(text, ";"), func(statement string) bool {
		return setsID.MatchString(statement) && readsID.MatchString(statement)
	})
}

// ownID are the texts that read within themselves the LAST_INSERT_ID() that they set: the
// question whether a server can do that, and two statements for servers that can.
var ownID = []string{"SeesOwnID", "CompareAndBumpNamed", "CompareAndBumpCenter"}

// TestOwnIDIsNotRead: no statement of leases, or of anything else but those of ownID, relies on a
// LAST_INSERT_ID() that it sets and reads itself, which is an older one on TiDB and Vitess.
func TestOwnIDIsNotRead(t *testing.T) {
	t.Parallel()
	queries, err := Places(filepath.Join(root, "queries"))
	check(t, err)
	texts := make(map[string]string) // all strings of one declaration are one text
	for name, query := range queries {
		lines := slices.DeleteFunc(strings.Split(query.Text, "\n"), func(line string) bool { return strings.HasPrefix(line, "--") })
		texts[name] = strings.Join(lines, "\n")
	}
	several := []rawsql.Wanted{{Name: "a"}, {Name: "b"}}
	texts["AcquireMany"], texts["ReleaseMany"] = rawsql.AcquireMany(several, 1), rawsql.ReleaseMany(several, 1)
	texts["RenewMany"] = rawsql.RenewMany([]rawsql.Hold{{Name: "a"}})
	walk(t, "internal/rawsql", func(name, text string) { texts[name] += " " + text })
	var found []string
	for name, text := range texts {
		if readsOwnID(text) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	want := slices.Sorted(slices.Values(ownID))
	if !slices.Equal(found, want) {
		t.Errorf("LAST_INSERT_ID() is set and read within %v, want only within %v", found, want)
	}
}

// TestReadsOwnID: reading it in a later statement is something else.
func TestReadsOwnID(t *testing.T) {
	t.Parallel()
	for text, own := range map[string]bool{
		"UPDATE t SET a = LAST_INSERT_ID(a + 1), b = last_insert_id( )":       true,
		"INSERT INTO t VALUES (LAST_INSERT_ID(IF(LAST_INSERT_ID()=0, 1, 2)))": true,
		"UPDATE t SET a = LAST_INSERT_ID(a + 1)":                              false,
		"UPDATE t SET a = LAST_INSERT_ID (a); SELECT LAST_INSERT_ID()":        false,
		"SELECT LAST_INSERT_ID()":                                             false,
	} {
		if readsOwnID(text) != own {
			t.Errorf("%s: %t", text, !own)
		}
	}
}
