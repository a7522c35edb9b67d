package rawsql

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// Statement is a statement of lockstep's own before it is rendered.
type Statement struct {
	// Query has a question mark for each argument. It is empty for the call of a Procedure.
	Query string
	Args  []any
	// Inserts says that it is an INSERT of which the id alone counts.
	Inserts bool
	// Variables are those of MariaDB that count for it; see For.
	Variables []string
	// Procedure is one of package schema. Its first parameter says how the transaction begins,
	// and is NULL in one that is open; Args are the others.
	Procedure string
	// behind counts the question marks behind those of Args, which are for the arguments of a
	// statement of the program.
	behind int
}

// SQL returns the statement as a text with a question mark for each argument, and these.
func (s Statement) SQL() (query string, args []any) {
	if s.Procedure != "" {
		s = s.call("NULL", "")
	}
	if len(s.Variables) > 0 {
		s.Query = For(s.Variables...) + s.Query
	}
	return s.Query, s.Args
}

// Text returns the statement with its arguments in the text; see Inline.
func (s Statement) Text() (string, bool) {
	query, args := s.SQL()
	return inline(query, args, s.behind)
}

// call returns the call of the procedure, with its first argument and more behind the others.
// One that is nil is NULL in the text, since Inline has no room for it.
func (s Statement) call(opening, more string) Statement {
	var text strings.Builder
	text.WriteString("CALL " + s.Procedure + "(" + opening)
	args := make([]any, 0, len(s.Args))
	for _, arg := range s.Args {
		if arg == nil {
			text.WriteString(", NULL")
			continue
		}
		text.WriteString(", ?")
		args = append(args, arg)
	}
	text.WriteString(more + ")")
	return Statement{Query: text.String(), Args: args}
}

// Inline writes the arguments of a statement into its text, so that nothing has to be
// prepared: numbers in decimal, strings and bytes as hexadecimal literals, which need no
// quoting and have no character set. It returns false for an argument of another type,
// and if the number of arguments isn't the number of question marks. Every question mark
// in the text must stand for an argument.
func Inline(query string, args []any) (string, bool) { return inline(query, args, 0) }

func inline(query string, args []any, behind int) (string, bool) {
	if strings.Count(query, "?") != len(args)+behind {
		return "", false
	}
	var text strings.Builder
	text.Grow(len(query) + 64*len(args))
	var piece [544]byte // has room for the longest name
	for _, arg := range args {
		at := strings.IndexByte(query, '?')
		text.WriteString(query[:at])
		query = query[at+1:]
		switch v := arg.(type) {
		case int:
			text.Write(strconv.AppendInt(piece[:0], int64(v), 10))
		case int32:
			text.Write(strconv.AppendInt(piece[:0], int64(v), 10))
		case int64:
			text.Write(strconv.AppendInt(piece[:0], v, 10))
		case uint32:
			text.Write(strconv.AppendUint(piece[:0], uint64(v), 10))
		case uint64:
			text.Write(strconv.AppendUint(piece[:0], v, 10))
		case string:
			text.Write(appendHex(piece[:0], []byte(v)))
		case []byte:
			if v == nil { // NULL
				return "", false
			}
			text.Write(appendHex(piece[:0], v))
		default:
			return "", false
		}
	}
	text.WriteString(query)
	return text.String(), true
}

func appendHex(text, b []byte) []byte {
	return append(hex.AppendEncode(append(text, "X'"...), b), '\'')
}

// Begin says how a transaction begins, where its BEGIN and its first statement share a
// text.
type Begin struct {
	// Open says that it has begun.
	Open bool
	// Isolation is the level in upper case, "READ COMMITTED" for example, or "" for that
	// of the session.
	Isolation string
	// ReadOnly begins a transaction that writes nothing.
	ReadOnly bool
	// Again rolls back first what an attempt before this one has left open.
	Again bool
	// Make is the name of a key whose row is made before, outside of the transaction, if it is
	// missing.
	Make string
}

func (b Begin) access() string {
	if b.ReadOnly {
		return " READ ONLY"
	}
	return ""
}

// Engine is a kind of server: what it can do that others can't, and how it renders what shares
// a text.
type Engine struct {
	Renderer
	Replies *Replies
	// Name and Least are its product, and the oldest version that has what locks need, 10_06 for
	// example.
	Name  string
	Least int
	// ForShare are the words of a shared locking read before SKIP LOCKED.
	ForShare string
	// TimeLimit is the variable that limits the time of a statement.
	TimeLimit string
	// Processes is the list of sessions, which shows a user at least its own.
	Processes string
	// Began reads when the transaction began, 0 if none is open, where Probe tells nothing.
	Began string
	// Settings is a text like the constant Settings, of what else transactions rely on, where Nonce
	// stands for what no other text has. A server that doesn't know it is refused.
	Settings string
	// Levels has the isolation levels that BeginTx may name, by String, where Lacks.Levels isn't "".
	Levels string
	// Views is the file of package schema with its views.
	Views string
	// Lacks says what it can't do that others can.
	Lacks Lacks
	// Procedures: the procedures of package schema take locks.
	Procedures bool
	// Compound: statements share a text that is longer to parse than to execute, For sets
	// variables for one, and what writes can return rows.
	Compound bool
	// SnapshotAtBegin: a transaction has its snapshot before its first statement, and plain reads
	// may be older than a lock unless they are at READ COMMITTED.
	SnapshotAtBegin bool
	// OneByOne: a statement that locks many rows may give up.
	OneByOne bool
	// Waits: SKIP LOCKED is read, but waits, and only the waits of transactions have a limit.
	Waits bool
	// CommittedOnly: what isn't committed can't be read.
	CommittedOnly bool
	// WholeSeconds: nothing but the session's timeout limits a wait.
	WholeSeconds bool
	// SafeReads: what others have committed can be read when it can't be lost any more.
	SafeReads bool
	// Early: a statement that waits for a row computes before what it writes, also its time.
	Early bool
	// OldID: within a statement LAST_INSERT_ID() is that of the statement before.
	OldID bool
	// Gateway: what answers stands before the server. Only the flag of a reply shows whether a
	// transaction is open, the isolation level of one stays that of the session, and
	// CONNECTION_ID() isn't the number by which KILL knows the session.
	Gateway bool
	// Prepare is the first statement of a guarded connection, or "".
	Prepare string
}

// Lacks has a sentence for each thing that an engine can't do, or isn't known to do, and "" for
// what it can; see session.Lacks. Has is what it has in place of all.
type Lacks struct {
	Has    string
	Pools  string // any pool
	Begin  string // transactions that are begun as text
	Levels string // isolation levels but Engine.Levels
	Shared string // shared locks
	Plain  string // statements of a transaction but those that can't end it
	Leases string // leases but exclusive ones, and what needs to see who waits
	Views  string
	Shards string // rows on several servers
}

// Renderer renders what shares a text. Its methods return false for what can't.
type Renderer interface {
	// RefusesStale reports whether a server of that version knows RefuseStale.
	RefusesStale(version string) bool
	// Open returns a statement as one that begins the transaction first. Reply asks for a row
	// with the id and the number of rows that a statement without rows is answered with, which
	// the reply to that text hasn't.
	Open(b Begin, s Statement, reply bool) (Statement, bool)
	// Commit returns a statement that raises a token as one that commits the transaction where
	// it has done so. The row of the reply has the token first, or 0, and comes before the
	// COMMIT: an error without it is that of a transaction which wasn't committed.
	Commit(s Statement) (Statement, bool)
	// LockThen returns a lock statement as one that begins the transaction first, and executes a
	// read of the program with so many arguments afterwards, if there is one. The reply is that
	// to the lock, and then what was read.
	LockThen(b Begin, lock Statement, read string, args int) (Statement, bool)
	// WriteAndCommit returns a statement of the program with so many arguments as one that
	// commits the transaction if it has changed so many rows, or any number if that is negative.
	// The reply is a row of the insert id and the number of rows, before the COMMIT.
	WriteAndCommit(query string, args int, rows int64) (Statement, bool)
}

// EngineOf returns the engine of a server of that version.
func EngineOf(version string) Engine {
	switch {
	case strings.Contains(version, MariaDB.Name):
		return MariaDB
	case strings.Contains(version, TiDB.Name):
		return TiDB
	case strings.Contains(version, Vitess.Name):
		return Vitess
	}
	return MySQL
}

// literal is a statement of the program in a text of lockstep's: so it stays one statement,
// whatever is in it, and sees no name of the others. Its arguments are those of the text.
func literal(query string) string { return "X'" + hex.EncodeToString([]byte(query)) + "'" }
