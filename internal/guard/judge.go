package guard

import (
	"cmp"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"strings"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/sqltext"
)

// kind says what a statement may do to the transaction that it runs in.
type kind int

const (
	kindUncertain  kind = iota // it may end the transaction: DDL, CALL, SET autocommit, ...
	kindPlain                  // it can't end it, unless the server rolls the transaction back
	kindQuiet                  // the same, and it reads nothing: lock statements
	kindSavepoint              // SAVEPOINT
	kindRelease                // RELEASE SAVEPOINT
	kindRollbackTo             // ROLLBACK TO SAVEPOINT
	kindBegin                  // BEGIN, START TRANSACTION
	kindCommit                 // COMMIT
	kindRollback               // ROLLBACK
)

// ending says what a statement has done if the transaction is over after it.
type ending int

const (
	endRolledBack ending = iota // the server has rolled the transaction back
	endCommitted                // the statement has committed it, by its words
	endUnknown                  // either of these: its text doesn't show what it executes
	endCommits                  // either of these: it is the COMMIT of the transaction itself
	endUndone                   // the statement has rolled it back, by its words
)

// byWords reports whether the statement has ended it by its words.
func (e ending) byWords() bool { return e == endCommitted || e == endUndone }

// statement is the judgement on the text of a statement.
type statement struct {
	kind      kind
	name      string             // its first words, for errors
	savepoint string             // of SAVEPOINT, RELEASE and ROLLBACK TO; see sqltext.SavepointName
	chain     bool               // COMMIT AND CHAIN or ROLLBACK AND CHAIN, which begins the next transaction at once
	reads     bool               // BEGIN that takes the snapshot at once
	reopens   bool               // it may end the transaction and begin another, which no reply tells
	unseen    bool               // it may set savepoints and roll back to them
	leaves    bool               // it leaves the session as it was: see facts.go
	sets      bool               // it is a SET, whose values are evaluated before it does anything
	chooses   bool               // it may be SET TRANSACTION, or send it, or LOCK TABLES
	level     sql.IsolationLevel // see chosenLevel
	end       ending
	size      int // of its text and arguments, roughly
}

// large is the least limit for a packet that a server has by default.
const large = 1 << 20

// of returns the judgement on a statement with its size.
func (s statement) of(query string, args []driver.NamedValue) statement {
	s.size = len(query)
	for _, arg := range args {
		switch v := arg.Value.(type) {
		case string:
			s.size += len(v)
		case []byte:
			s.size += len(v)
		case json.RawMessage:
			s.size += len(v)
		}
	}
	return s
}

// asks reports whether the server must be asked what the statement has done: an error
// doesn't tell, nor does a reply whose flags can't be read.
func (s statement) asks(told, failed bool) bool {
	switch {
	case s.kind == kindUncertain:
		return failed || !told
	case s.end != endRolledBack && failed:
		return true
	}
	return s.reopens && !told
}

// plain holds the first words of statements that can't end a transaction.
var plain = words("SELECT INSERT UPDATE DELETE REPLACE WITH VALUES TABLE SHOW EXPLAIN DESCRIBE DESC USE HELP KILL HANDLER SIGNAL RESIGNAL PREPARE DEALLOCATE GET")

// leaving holds the first words of statements that leave the session as it was, unless they
// have INTO. So do those that begin and end transactions and savepoints, and no others.
var leaving = words("SELECT WITH INSERT UPDATE DELETE REPLACE SHOW")

// committing holds the first words of statements that commit the transaction, or may, and
// begin none. What is neither here nor known to judgeOne may do anything.
var committing = words("CREATE ALTER DROP RENAME TRUNCATE LOCK UNLOCK GRANT REVOKE ANALYZE OPTIMIZE CHECK REPAIR CACHE FLUSH RESET PURGE INSTALL UNINSTALL IMPORT")

var into = map[string]bool{"into": true}

func words(list string) map[string]bool {
	set := make(map[string]bool)
	for _, w := range strings.Fields(list) {
		set[w] = true
	}
	return set
}

// judge tells what a text of one or more statements may do to its transaction, by the
// first words of each.
func judge(query string) statement {
	switch query { // lockstep's own
	case rawsql.ReadCommitted, rawsql.ShortenLockWait, rawsql.RestoreLockWait: // before each renewal, and around the row of a new key
		s := judgeOne(query)
		s.leaves = true
		return s
	}
	first, rest := sqltext.Next(query)
	s := judgeOne(first)
	if rest != "" {
		s = s.several()
	}
	for rest != "" {
		first, rest = sqltext.Next(rest)
		s = s.and(judgeOne(first).several())
	}
	// Under NO_BACKSLASH_ESCAPES its quotes end elsewhere, and so do its statements; and only the server
	// knows whether it reads a conditional comment.
	if strings.IndexByte(query, ';') >= 0 && strings.IndexByte(query, '\\') >= 0 || sqltext.Conditional(query) {
		s = s.doubtful(query)
		s.level = chosenLevel(nil, query)
	}
	if s.kind == kindUncertain && s.name == "" {
		s.name = "several statements"
	}
	return s
}

// several returns the judgement on the statement as one of several in a text. A SET among
// them may switch autocommit off, and then another may end the transaction and begin the next.
func (s statement) several() statement {
	s.leaves, s.reopens = false, s.reopens || s.sets
	switch s.kind {
	case kindUncertain, kindPlain:
		return s
	case kindRollback:
		return statement{name: s.name, reopens: true, end: endUndone}
	case kindBegin, kindCommit:
		return statement{name: s.name, reopens: true, end: endCommitted}
	}
	return statement{name: s.name, unseen: true} // a savepoint, whose name isn't followed there
}

// and returns the judgement on a text of both statements. Its name is that of the first
// one that isn't plain.
func (s statement) and(next statement) statement {
	switch {
	case next.kind == kindPlain:
		next.name, next.kind = s.name, s.kind
	case s.kind == kindUncertain:
		next.name = s.name
	}
	next.reopens, next.unseen, next.sets = next.reopens || s.reopens, next.unseen || s.unseen, false
	next.chooses = next.chooses || s.chooses
	if s.level != next.level {
		next.level = anyLevel
	}
	switch { // what ends it first
	case s.end.byWords(), next.end == endRolledBack, next.end == endUndone && s.end == endUnknown:
		next.end = s.end
	}
	return next
}

// doubtful returns the judgement on a statement whose text may mean something else.
func (s statement) doubtful(query string) statement {
	s = s.several()
	s.kind, s.reopens, s.chooses = kindUncertain, true, s.chooses || choosesNext(query)
	if s.end == endRolledBack {
		s.end = endUnknown
	}
	return s
}

// judgeOne judges a single statement. An executable comment makes it doubtful, unless the
// first word alone says what the statement is.
func judgeOne(query string) statement {
	s, certain := judgeWords(query)
	if !certain && s.kind != kindBegin && sqltext.Executable(query) {
		s = s.doubtful(query)
	}
	return s
}

// judgeWords judges a single statement by its words, including those in executable
// comments. It is certain if the first word alone says that the statement can't end a
// transaction.
func judgeWords(query string) (s statement, certain bool) {
	w := sqltext.Words(query, 4)
	s.name = strings.Join(w, " ")
	if before := strings.IndexAny(query, "`\"'("); before >= 0 { // what is quoted is no word, so those behind it don't follow
		s.name = cmp.Or(strings.Join(sqltext.Words(query[:before], 4), " "), s.name)
	}
	switch {
	case len(w) == 0: // a comment alone
		s.kind, s.leaves = kindPlain, true
	case plain[w[0]]:
		s.kind, certain = kindPlain, true
		s.leaves = leaving[w[0]] && (w[0] != "SELECT" && w[0] != "WITH" || sqltext.Mentions(query, into) == "")
	case w[0] == "LOAD" && has(w[1:], "DATA", "XML"),
		(w[0] == "CREATE" || w[0] == "DROP") && has(w[1:], "TEMPORARY") && has(w[2:], "TABLE"):
		s.kind = kindPlain
	case w[0] == "DO": // MariaDB reports success even if it was the victim of a deadlock
		s.kind, s.reopens = kindPlain, true
	case committing[w[0]]:
		s.end, s.chooses = endCommitted, w[0] == "LOCK"
	case w[0] == "SET" && has(w[1:], "STATEMENT"):
		return s.judgeInner(query)
	case w[0] == "SET": // autocommit, for example, or PASSWORD, which is in a table of the server
		s.sets, s.chooses, s.level, s.end = true, choosesNext(query), chosenLevel(w[1:], query), endUnknown
	case w[0] == "SAVEPOINT":
		s.kind, s.leaves, s.savepoint = kindSavepoint, true, sqltext.SavepointName(query)
	case w[0] == "RELEASE" && has(w[1:], "SAVEPOINT"):
		s.kind, s.leaves, s.savepoint = kindRelease, true, sqltext.SavepointName(query)
	case w[0] == "ROLLBACK" && (has(w[1:], "TO") || len(w) > 2 && w[2] == "TO"):
		s.kind, s.leaves, s.savepoint = kindRollbackTo, true, sqltext.SavepointName(query)
	case w[0] == "BEGIN" && (len(w) == 1 || w[1] == "WORK"):
		s.kind, s.leaves, s.end = kindBegin, true, endUnknown
	case w[0] == "START" && has(w[1:], "TRANSACTION"):
		s.kind, s.leaves, s.end = kindBegin, true, endUnknown
		s.reads = len(w) > 2 && strings.Contains(strings.ToUpper(query), "SNAPSHOT") // in a comment, too
	case w[0] == "COMMIT":
		s.kind, s.leaves, s.chain, s.end = kindCommit, true, chained(w), endCommits
	case w[0] == "ROLLBACK":
		s.kind, s.leaves, s.chain = kindRollback, true, chained(w)
	default: // CALL, EXECUTE, XA, a compound statement
		s.reopens, s.chooses, s.end = true, true, endUnknown
	}
	return s, certain
}

// judgeInner judges MariaDB's SET STATEMENT x=y FOR statement.
func (s statement) judgeInner(query string) (_ statement, certain bool) {
	variables, inner, ok := cutFold(query, " for ")
	of, certain := judgeWords(inner)
	quoted := !ok || strings.ContainsAny(variables, "'\"`#") // and so inner may begin anywhere
	if !quoted && !strings.ContainsAny(variables, "-/") {
		return of, certain
	}
	s.reopens, s.chooses, s.end = true, quoted || of.chooses, endUnknown
	return s, false
}

// choosesNext reports whether a text may have a SET that is about the next transaction alone.
func choosesNext(query string) bool {
	query = strings.ToUpper(query)
	return strings.Contains(query, "TRANSACTION") || strings.Contains(query, "TX_")
}

// anyLevel stands for an isolation level that nobody knows.
const anyLevel sql.IsolationLevel = -1

// chosenLevel returns the isolation level that a SET with these words chooses for the next
// transaction alone, which no variable shows, anyLevel where its words don't say it plainly, or
// LevelDefault if it chooses none.
func chosenLevel(w []string, query string) sql.IsolationLevel {
	query = strings.ToUpper(query)
	switch {
	case !strings.Contains(query, "TX_ISOLATION") && (!strings.Contains(query, "TRANSACTION") || !strings.Contains(query, "ISOLATION")):
		return sql.LevelDefault
	case has(w, "SESSION", "LOCAL", "GLOBAL") && has(w[1:], "TRANSACTION"):
		return sql.LevelDefault
	case strings.Contains(query, ","), strings.Contains(query, "/*"):
		return anyLevel
	case has(w, "SESSION", "LOCAL", "GLOBAL"), strings.HasPrefix(query, "SET TX_ISOLATION"), strings.HasPrefix(query, "SET TRANSACTION_ISOLATION"):
		return sql.LevelDefault
	}
	name, _ := strings.CutPrefix(strings.Join(sqltext.Words(query, 6), " "), "SET TRANSACTION ISOLATION LEVEL ")
	return cmp.Or(session.LevelOf(name), anyLevel)
}

// chained reports whether the words of a COMMIT or ROLLBACK have AND CHAIN.
func chained(w []string) bool {
	for i := 0; i+1 < len(w); i++ {
		if w[i] == "AND" && w[i+1] == "CHAIN" {
			return true
		}
	}
	return false
}

// has reports whether the first of the words is one of those wanted.
func has(w []string, wanted ...string) bool {
	for _, s := range wanted {
		if len(w) > 0 && w[0] == s {
			return true
		}
	}
	return false
}

// cutFold does what strings.Cut does, for an ASCII separator in any case.
func cutFold(s, sep string) (before, after string, found bool) {
	if i := strings.Index(strings.ToLower(s), sep); i >= 0 && len(strings.ToLower(s)) == len(s) {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
