package ops

import (
	"regexp"
	"strings"
)

var (
	variables  = regexp.MustCompile(`^SET STATEMENT [^'"/#-]*? FOR\s`)
	given      = regexp.MustCompile(`^(?:--|#|/\*)\s*name:\s*(\w+)`)
	ownTable   = regexp.MustCompile("(?:^|[\\s(,.`])lockstep_\\w")
	literal    = regexp.MustCompile(`(?s)'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)`)
	whiteSpace = regexp.MustCompile(`\s+`)
)

// statement writes a statement in one line, without what stands before its first word. One of
// lockstep's own is told by its name in queries/ or internal/rawsql: "lockstep LockNamed". Those
// that sqlc has made for the program have such names, too, but are about other tables:
// "query GetOrder: SELECT ...".
func statement(text string) string {
	name, said := uncommented(text)
	switch said = strings.TrimSpace(whiteSpace.ReplaceAllString(said, " ")); {
	case name != "" && ownTable.MatchString(literal.ReplaceAllString(said, "''")):
		return "lockstep " + name
	case name != "":
		return strings.TrimSuffix("query "+name+": "+said, ": ")
	case said == "": // a comment is all there is
		return strings.TrimSpace(whiteSpace.ReplaceAllString(text, " "))
	}
	return said
}

var service = regexp.MustCompile("(?i)^(lockstep \\w+|(SAVEPOINT|RELEASE SAVEPOINT|ROLLBACK TO( SAVEPOINT)?) `?lockstep_\\w+`?|CALL `?lockstep_.*|SET (SESSION |@)?(lockstep_|innodb_lock_wait_timeout|lock_wait_timeout).*|SET TRANSACTION READ WRITE|SHOW GLOBAL (VARIABLES|STATUS) .*|.* FROM performance_schema\\.replication_group_members .*|SELECT @@max_allowed_packet|SELECT @lockstep_rows|SELECT (@@version, CONCAT\\(CONNECTION_ID|CONNECTION_ID\\(\\)$|@@SESSION.innodb_lock_wait_timeout).*|BEGIN|START TRANSACTION.*)$")

// ownStatement reports whether a statement, as statement writes it, is one that lockstep sends beside
// the program's.
func ownStatement(said string) bool { return said == "" || service.MatchString(said) }

// uncommented cuts the comments before a statement, and the variables that lockstep sets on
// MariaDB, and returns the name that one of them gives the statement.
func uncommented(text string) (name, said string) {
	for {
		text = strings.TrimSpace(text)
		n := len(variables.FindString(text))
		if n == 0 {
			n = comment(text)
		}
		if n == 0 {
			return name, text
		}
		if is := given.FindStringSubmatch(text[:n]); is != nil && name == "" {
			name = is[1]
		}
		text = text[n:]
	}
}

// comment returns how long the comment is that a text begins with. What a server executes or
// obeys in the form of a comment is none.
func comment(text string) int {
	begin, end := 1, "\n"
	switch {
	case strings.HasPrefix(text, "/*!"), strings.HasPrefix(text, "/*M!"), strings.HasPrefix(text, "/*+"):
		return 0
	case strings.HasPrefix(text, "/*"):
		begin, end = 2, "*/"
	case !strings.HasPrefix(text, "-- ") && !strings.HasPrefix(text, "--\n") && !strings.HasPrefix(text, "#"):
		return 0
	}
	if at := strings.Index(text[begin:], end); at >= 0 {
		return begin + at + len(end)
	}
	return len(text) // the server has cut it
}
