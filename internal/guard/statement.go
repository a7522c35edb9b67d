package guard

import (
	"strings"

	"github.com/dca00107/lockstep/internal/sqltext"
)

// kind is what a statement does to the transaction that it runs in.
type kind int

const (
	kindUncertain  kind = iota // it may commit: DDL, CALL, SET autocommit, ...
	kindHarmless               // it can't commit
	kindQuiet                  // it neither reads nor commits: SAVEPOINT, the locks' own
	kindRollbackTo             // ROLLBACK TO SAVEPOINT
	kindBegin                  // BEGIN, START TRANSACTION
	kindCommit                 // COMMIT
	kindRollback               // ROLLBACK
)

// statement is the text of a statement, judged.
type statement struct {
	kind  kind
	name  string // its first words, for errors
	chain bool   // COMMIT or ROLLBACK that begins the next transaction at once
	reads bool   // BEGIN that fixes the snapshot at once
	ends  bool   // one of several statements is a BEGIN, COMMIT or ROLLBACK
}

// harmless are the statements that never commit. All that is neither here nor
// known to judge is uncertain, and the server is asked when it matters.
var harmless = map[string]bool{
	"SELECT": true, "INSERT": true, "UPDATE": true, "DELETE": true, "REPLACE": true,
	"WITH": true, "VALUES": true, "TABLE": true, "SHOW": true, "EXPLAIN": true,
	"DESCRIBE": true, "DESC": true, "DO": true, "USE": true, "HELP": true,
	"KILL": true, "HANDLER": true, "SIGNAL": true, "RESIGNAL": true,
}

// judge tells what a statement does to its transaction, by its first words.
func judge(query string) statement {
	s := judgeAll(query)
	if strings.IndexByte(query, ';') >= 0 && strings.IndexByte(query, '\\') >= 0 {
		// Under NO_BACKSLASH_ESCAPES it has other quotes, and so other pieces.
		s.kind, s.ends = kindUncertain, s.ends || s.isBoundary()
	}
	if s.kind == kindUncertain && s.name == "" {
		s.name = "several statements"
	}
	return s
}

// judgeAll judges each statement of a text. Several are harmless where each of
// them is; otherwise they have the name of the first that isn't.
func judgeAll(query string) statement {
	first, rest := sqltext.Next(query)
	s := judgeOne(first)
	if rest == "" {
		return s
	}
	s.kind, s.ends = several(s), s.isBoundary()
	for rest != "" {
		var piece string
		piece, rest = sqltext.Next(rest)
		more := judgeOne(piece)
		if s.kind == kindHarmless {
			s = statement{kind: several(more), name: more.name, ends: s.ends}
		}
		s.ends = s.ends || more.isBoundary()
	}
	return s
}

// several is the kind of a text of several statements with this one among them.
func several(s statement) kind {
	if s.kind == kindHarmless {
		return kindHarmless
	}
	return kindUncertain
}

// isBoundary tells whether the statement begins or ends a transaction.
func (s statement) isBoundary() bool {
	return s.kind == kindBegin || s.kind == kindCommit || s.kind == kindRollback
}

// isDDL tells whether it is a statement that commits before it does anything else.
func (s statement) isDDL() bool {
	if s.kind != kindUncertain || s.ends {
		return false
	}
	first, _, _ := strings.Cut(s.name, " ")
	return ddl[first]
}

var ddl = map[string]bool{"CREATE": true, "ALTER": true, "DROP": true, "RENAME": true, "TRUNCATE": true}

// judgeOne judges a single statement.
func judgeOne(query string) statement {
	w := sqltext.Words(query, 4)
	s := statement{kind: kindUncertain, name: strings.Join(w, " ")}
	switch {
	case len(w) == 0: // a comment alone
		s.kind = kindHarmless
	case strings.Contains(query, "/*!"), strings.Contains(query, "/*M!"):
		// Only the server knows whether it reads this comment.
	case harmless[w[0]]:
		s.kind = kindHarmless
	case w[0] == "LOAD" && has(w[1:], "DATA", "XML"):
		s.kind = kindHarmless
	case w[0] == "SET" && setMayCommit(query):
	case w[0] == "SET" && has(w[1:], "STATEMENT"): // MariaDB: SET STATEMENT x=y FOR statement
		if variables, inner, ok := cutFold(query, " for "); ok && !strings.ContainsAny(variables, "'\"`#-/") {
			return judgeOne(inner)
		}
	case w[0] == "SET":
		s.kind = kindHarmless
	case w[0] == "SAVEPOINT", w[0] == "RELEASE":
		s.kind = kindQuiet
	case w[0] == "BEGIN" && (len(w) == 1 || w[1] == "WORK"):
		s.kind = kindBegin
	case w[0] == "START" && has(w[1:], "TRANSACTION"):
		s.kind = kindBegin
		s.reads = len(w) > 2 && strings.Contains(strings.ToUpper(query), "SNAPSHOT")
	case w[0] == "COMMIT":
		s.kind, s.chain = kindCommit, chained(w)
	case w[0] == "ROLLBACK":
		s.kind, s.chain = kindRollback, chained(w)
		if has(w[1:], "TO") || len(w) > 2 && w[2] == "TO" {
			s.kind = kindRollbackTo
		}
	case (w[0] == "CREATE" || w[0] == "DROP") && has(w[1:], "TEMPORARY") && has(w[2:], "TABLE"):
		s.kind = kindHarmless
	}
	return s
}

// chained tells of the words of COMMIT or ROLLBACK whether AND CHAIN follows.
func chained(w []string) bool {
	for i := 0; i+1 < len(w); i++ {
		if w[i] == "AND" && w[i+1] == "CHAIN" {
			return true
		}
	}
	return false
}

// has tells whether the first of the words is one of the wanted.
func has(w []string, wanted ...string) bool {
	for _, s := range wanted {
		if len(w) > 0 && w[0] == s {
			return true
		}
	}
	return false
}

// setMayCommit tells whether a SET may end the transaction: by autocommit, or
// because SET PASSWORD and SET DEFAULT ROLE write a table of the server.
func setMayCommit(query string) bool {
	query = strings.ToLower(query)
	return strings.Contains(query, "autocommit") || strings.Contains(query, "password") || strings.Contains(query, "default")
}

// cutFold is strings.Cut without regard to case, for an ASCII separator.
func cutFold(s, sep string) (before, after string, found bool) {
	if i := strings.Index(strings.ToLower(s), sep); i >= 0 && len(strings.ToLower(s)) == len(s) {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
