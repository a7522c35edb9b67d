package rawsql

import "strings"

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
	// Make makes the row of a named key before, outside of the transaction, if it is
	// missing. It is the name as SQL has it: a literal, or a question mark.
	Make string
}

// Compound returns the statement inside a compound statement that begins the transaction
// first. Reply asks for a row with the id that a statement without rows is answered with,
// and for one that is no INSERT with the number of rows: the reply to a compound statement
// has neither. MariaDB only. It returns false for a statement that can't be in it.
func (b Begin) Compound(query string, reply bool) (string, bool) {
	prefix, verb, statement := mergeable(query)
	begin := b.statements()
	switch {
	case verb == "", reply && verb == "SELECT":
		return "", false
	case reply: // the id of an earlier statement is not this one's
		begin = "DO LAST_INSERT_ID(0); " + begin
		statement += map[string]string{"INSERT": " RETURNING LAST_INSERT_ID()", "UPDATE": "; SELECT LAST_INSERT_ID(), ROW_COUNT()"}[verb]
	}
	return prefix + "BEGIN NOT ATOMIC " + begin + statement + "; END", true
}

// Compounds tells whether Compound takes a statement.
func (b Begin) Compounds(query string, reply bool) bool {
	_, verb, _ := mergeable(query)
	return verb != "" && (!reply || verb != "SELECT")
}

// Call returns the call of a procedure of lockstep's with its first argument, NULL,
// replaced by the way to begin, to which the row to make is the name in its arguments. It
// returns false for any other statement. What an attempt before has left open is rolled back
// by a statement of its own.
func (b Begin) Call(query string) (string, bool) {
	name, arguments, ok := strings.Cut(uncommented(query), "(NULL")
	if !ok || b.Again || !strings.HasPrefix(name, "CALL lockstep_") {
		return "", false
	}
	opening := b.Isolation + b.access()
	if b.Make != "" {
		opening += " MAKE"
	}
	return name + "('" + strings.TrimSpace(opening) + "'" + arguments, true
}

// CommitCall returns the call of lockstep_compare_1 with its last argument, 0, replaced by
// 1: it commits the transaction where it raises the token. It returns false for any other
// statement.
func CommitCall(query string) (string, bool) {
	call, rest, ok := strings.Cut(uncommented(query), ", 0)")
	if !ok || !strings.HasPrefix(call, "CALL lockstep_compare_") {
		return "", false
	}
	return call + ", 1)" + rest, true
}

func (b Begin) access() string {
	if b.ReadOnly {
		return " READ ONLY"
	}
	return ""
}

// CommitIfRaised returns CompareAndBump in a compound statement that commits the
// transaction where it has raised the token, which is the reply, and comes before the COMMIT:
// an error without it is that of a transaction which wasn't committed. Where it had to make the
// row, it is repeated, and raises the token at once: to write it twice takes the server as
// long again as all else. MariaDB only.
func CommitIfRaised(query string) (string, bool) {
	prefix, verb, statement := mergeable(query)
	return prefix + "BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); REPEAT " + statement +
		"; UNTIL LAST_INSERT_ID() <> 1 END REPEAT" +
		"; SELECT LAST_INSERT_ID()" +
		"; IF LAST_INSERT_ID() > 1 THEN COMMIT; END IF; END", verb == "INSERT" || verb == "UPDATE"
}

// statements returns the statements that begin the transaction. What makes a row waits for
// nobody: SELECT ... INTO, while a condition with a SELECT in it would lock the row, and an
// INSERT that leaves it to the lock statement to wait for who is making it.
func (b Begin) statements() string {
	if b.Open {
		return ""
	}
	text := "START TRANSACTION" + b.access() + "; "
	if b.Isolation != "" {
		text = "SET TRANSACTION ISOLATION LEVEL " + b.Isolation + "; " + text
	}
	if b.Make != "" {
		text = "BEGIN DECLARE lockstep_name VARBINARY(255) DEFAULT " + b.Make + "; DECLARE lockstep_rows INT; " +
			"DECLARE CONTINUE HANDLER FOR 1205 BEGIN END; " +
			"SELECT COUNT(*) INTO lockstep_rows FROM lockstep_locks WHERE name = lockstep_name; " +
			"IF lockstep_rows = 0 THEN " + For(NoWait) + "INSERT IGNORE INTO lockstep_locks (name, token, owner, conn_id, locked_us) " +
			"VALUES (lockstep_name, 0, '-', 0, UNIX_TIMESTAMP() * 1000000); END IF; END; " + text
	}
	if b.Again {
		text = "ROLLBACK; " + text
	}
	return text
}

// mergeable cuts a statement into the prefix that For has written, its first word, and
// what follows the prefix. The word is empty for a statement that isn't merged.
func mergeable(query string) (prefix, verb, statement string) {
	if strings.HasPrefix(query, "SET STATEMENT ") {
		at := strings.Index(query, " FOR ") + len(" FOR ")
		prefix, query = query[:at], query[at:]
	}
	statement = strings.TrimRight(uncommented(query), "; \n")
	if strings.Contains(statement, "--") || strings.Contains(statement, "#") {
		return prefix, "", statement // the comment of a wrapper, which would hide what follows
	}
	switch verb, _, _ = strings.Cut(statement, " "); verb {
	case "INSERT", "SELECT", "UPDATE":
		return prefix, verb, statement
	}
	return prefix, "", statement
}

// uncommented cuts the comment that sqlc writes before a statement.
func uncommented(query string) string {
	for strings.HasPrefix(query, "--") || strings.HasPrefix(query, "\n") {
		_, query, _ = strings.Cut(query, "\n")
	}
	return query
}
