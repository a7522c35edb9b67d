package guard

import (
	"strings"

	"github.com/dca00107/lockstep/internal/sqltext"
)

// kind is what a statement is for the book of the transaction that it runs in.
type kind int

const (
	kindUncertain  kind = iota // it may end the transaction: DDL, CALL, SET autocommit, ...
	kindPlain                  // it can't, unless the server rolls the transaction back
	kindQuiet                  // likewise, and it reads nothing: the locks' own
	kindSavepoint              // SAVEPOINT
	kindRelease                // RELEASE SAVEPOINT
	kindRollbackTo             // ROLLBACK TO SAVEPOINT
	kindBegin                  // BEGIN, START TRANSACTION
	kindCommit                 // COMMIT
	kindRollback               // ROLLBACK
)

// ending is what a statement has done where the transaction is over after it.
type ending int

const (
	endRolledBack ending = iota // the server has rolled the transaction back
	endCommitted                // the statement has committed it, by its words
	endUnknown                  // one of both: what it executes isn't in its text
)

// statement is the text of a statement, judged.
type statement struct {
	kind      kind
	name      string // its first words, for errors
	savepoint string // of SAVEPOINT, RELEASE and ROLLBACK TO, as it is written
	chain     bool   // COMMIT or ROLLBACK that begins the next transaction at once
	reads     bool   // BEGIN that fixes the snapshot at once
	anew      bool   // it may end the transaction and begin another: no reply tells that
	unseen    bool   // it may set savepoints and go back to them
	end       ending
}

// asks tells whether the server is asked after the statement: by an error, or by a reply
// that can't be read, nobody is told what it has done.
func (s statement) asks(told, failed bool) bool {
	switch {
	case s.kind == kindUncertain:
		return failed || !told
	case s.end != endRolledBack && failed:
		return true
	}
	return s.anew && !told
}

// plain are the statements that can't end a transaction.
var plain = words("SELECT INSERT UPDATE DELETE REPLACE WITH VALUES TABLE SHOW EXPLAIN DESCRIBE DESC USE HELP KILL HANDLER SIGNAL RESIGNAL PREPARE DEALLOCATE")

// committing are the statements that commit the transaction, or may, and begin none. All
// that is neither here nor known to judgeOne may do anything.
var committing = words("CREATE ALTER DROP RENAME TRUNCATE LOCK UNLOCK GRANT REVOKE ANALYZE OPTIMIZE CHECK REPAIR CACHE FLUSH RESET PURGE INSTALL UNINSTALL IMPORT")

func words(list string) map[string]bool {
	set := make(map[string]bool)
	for _, w := range strings.Fields(list) {
		set[w] = true
	}
	return set
}

// judge tells what a statement may do to its transaction, by its first words.
func judge(query string) statement {
	first, rest := sqltext.Next(query)
	s := judgeOne(first)
	if rest != "" {
		s = s.several()
	}
	for rest != "" {
		first, rest = sqltext.Next(rest)
		s = s.and(judgeOne(first).several())
	}
	if strings.IndexByte(query, ';') >= 0 && strings.IndexByte(query, '\\') >= 0 {
		// Under NO_BACKSLASH_ESCAPES it has other quotes, and so other pieces.
		s = s.doubtful()
	}
	if sqltext.Conditional(query) {
		s = s.several().doubtful() // only the server knows what it reads of it
	}
	if s.kind == kindUncertain && s.name == "" {
		s.name = "several statements"
	}
	return s
}

// several is the statement as one of a text of several.
func (s statement) several() statement {
	switch s.kind {
	case kindUncertain, kindPlain:
		return s
	case kindBegin, kindCommit, kindRollback:
		return statement{name: s.name, anew: true, end: endCommitted}
	}
	return statement{name: s.name, unseen: true} // a savepoint, which isn't followed there
}

// and is a text of both. It has the name of the first that isn't plain.
func (s statement) and(next statement) statement {
	switch {
	case next.kind == kindPlain:
		next.name, next.kind = s.name, s.kind
	case s.kind == kindUncertain:
		next.name = s.name
	}
	next.anew, next.unseen = next.anew || s.anew, next.unseen || s.unseen
	switch {
	case s.end == endCommitted, next.end == endRolledBack:
		next.end = s.end
	}
	return next
}

// doubtful is a statement whose text may mean something else.
func (s statement) doubtful() statement {
	s = s.several()
	s.kind, s.anew = kindUncertain, true
	if s.end == endRolledBack {
		s.end = endUnknown
	}
	return s
}

// judgeOne judges a single statement. Where its first word says what it is, an executable
// comment behind that can't change it; else it may be a part of it or not.
func judgeOne(query string) statement {
	s, certain := judgeWords(query)
	if !certain && s.kind != kindBegin && sqltext.Executable(query) {
		s = s.doubtful()
	}
	return s
}

// judgeWords judges a single statement by its words, those in executable comments too. It
// is certain where the first word alone says that it can't end a transaction.
func judgeWords(query string) (s statement, certain bool) {
	w := sqltext.Words(query, 4)
	s.name = strings.Join(w, " ")
	switch {
	case len(w) == 0: // a comment alone
		s.kind = kindPlain
	case plain[w[0]]:
		s.kind, certain = kindPlain, true
	case w[0] == "LOAD" && has(w[1:], "DATA", "XML"),
		(w[0] == "CREATE" || w[0] == "DROP") && has(w[1:], "TEMPORARY") && has(w[2:], "TABLE"):
		s.kind = kindPlain
	case w[0] == "DO": // MariaDB answers it with success where it was the victim of a deadlock
		s.kind, s.anew = kindPlain, true
	case committing[w[0]], w[0] == "SET" && setMayCommit(query):
		s.end = endCommitted
	case w[0] == "SET" && has(w[1:], "STATEMENT"): // MariaDB: SET STATEMENT x=y FOR statement
		if variables, inner, ok := cutFold(query, " for "); ok && !strings.ContainsAny(variables, "'\"`#-/") {
			return judgeWords(inner)
		}
		s.anew, s.end = true, endUnknown
	case w[0] == "SET":
		s.kind = kindPlain
	case w[0] == "SAVEPOINT":
		s.kind, s.savepoint = kindSavepoint, sqltext.LastName(query)
	case w[0] == "RELEASE" && has(w[1:], "SAVEPOINT"):
		s.kind, s.savepoint = kindRelease, sqltext.LastName(query)
	case w[0] == "ROLLBACK" && (has(w[1:], "TO") || len(w) > 2 && w[2] == "TO"):
		s.kind, s.savepoint = kindRollbackTo, sqltext.LastName(query)
	case w[0] == "BEGIN" && (len(w) == 1 || w[1] == "WORK"):
		s.kind, s.end = kindBegin, endUnknown
	case w[0] == "START" && has(w[1:], "TRANSACTION"):
		s.kind, s.end = kindBegin, endUnknown
		s.reads = len(w) > 2 && strings.Contains(strings.ToUpper(query), "SNAPSHOT") // in a comment, too
	case w[0] == "COMMIT":
		s.kind, s.chain, s.end = kindCommit, chained(w), endUnknown
	case w[0] == "ROLLBACK":
		s.kind, s.chain = kindRollback, chained(w)
	default: // CALL, EXECUTE, XA, a compound statement
		s.anew, s.end = true, endUnknown
	}
	return s, certain
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
