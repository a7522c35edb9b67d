package lockgorm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/internal/sqltext"
)

// writes returns the first of the tables that a statement may write rows of, or "".
func writes(statement string, tables map[string]bool, vars ...any) string {
	if words := sqltext.Words(statement, len(statement)); prepares(words) {
		return within(strings.ToLower(statement+fmt.Sprintf("%s", vars)), tables)
	}
	return sqltext.Mentions(written(statement), tables)
}

// prepares tells whether a statement prepares or executes the text of another, which
// stands in quotes.
func prepares(words []string) bool {
	for i, word := range words {
		next := words[i+1:]
		if word == "EXECUTE" && slices.Contains(next[:min(1, len(next))], "IMMEDIATE") || word == "PREPARE" && slices.Contains(next[:min(2, len(next))], "FROM") {
			return true
		}
	}
	return false
}

// within returns one of the tables whose name the text contains, even inside of another
// name, or "".
func within(text string, tables map[string]bool) string {
	for table := range tables {
		if strings.Contains(text, table) {
			return table
		}
	}
	return ""
}

// written returns the part of a statement that names the tables whose rows it writes: ""
// for a statement that only reads, or changes definitions, and the whole text of an
// unknown one.
func written(statement string) string {
	words := sqltext.Words(statement, len(statement))
	if len(words) == 0 {
		return ""
	}
	if before, ok := sqltext.BeforeExecutable(statement); ok {
		// Not every server executes what stands in an executable comment.
		if w := sqltext.Words(before, 1); len(w) > 0 && slices.Contains(reading, w[0]) {
			return ""
		}
		return statement
	}
	if slices.Contains(reading, words[0]) || analyzes(words) {
		return ""
	}
	switch words[0] {
	case "WITH":
		if !changes(words) {
			return ""
		}
	case "CREATE", "ALTER", "DROP", "RENAME":
		if !removes(words) {
			return ""
		}
	case "INSERT", "REPLACE":
		return sqltext.Until(statement, "SELECT", "VALUES", "VALUE", "SET", "TABLE", "WITH", "ON")
	case "SET":
		if len(words) == 1 || words[1] != "STATEMENT" { // SET STATEMENT ... FOR a statement, on MariaDB
			return ""
		}
	case "UPDATE":
		return sqltext.Until(statement, "SET")
	case "DELETE":
		// With several tables: DELETE a FROM a JOIN b, DELETE FROM a USING a JOIN b.
		if head := sqltext.Until(statement, "WHERE", "ORDER", "LIMIT"); !slices.Contains(sqltext.Words(head, len(head)), "USING") {
			return head
		}
	}
	return statement
}

// reading holds the first words of statements that change no rows.
var reading = []string{"SELECT", "TABLE", "VALUES", "SHOW", "EXPLAIN", "DESCRIBE", "DESC", "DO", "CHECK", "CHECKSUM", "OPTIMIZE", "GRANT", "REVOKE"}

// analyzes tells whether a statement is ANALYZE TABLE. MariaDB's other ANALYZE executes a
// statement.
func analyzes(words []string) bool {
	at := slices.Index(words, "TABLE")
	return words[0] == "ANALYZE" && (at == 1 || at == 2 && (words[1] == "LOCAL" || words[1] == "NO_WRITE_TO_BINLOG"))
}

// changes tells whether a statement that begins with WITH changes rows.
func changes(words []string) bool {
	before := ""
	for _, word := range words {
		if word == "INSERT" || word == "REPLACE" || word == "DELETE" || word == "UPDATE" && before != "FOR" {
			return true
		}
		before = word
	}
	return false
}

// removes tells whether a statement that changes a definition also removes rows, with a
// partition or by replacing a table.
func removes(words []string) bool {
	for i, word := range words[1:] {
		switch before := words[i]; word {
		case "PARTITION":
			if before == "DROP" || before == "TRUNCATE" || before == "EXCHANGE" {
				return true
			}
		case "TABLESPACE":
			return true
		case "OR":
			return before == "CREATE" && slices.Contains(words, "TABLE")
		}
	}
	return false
}
