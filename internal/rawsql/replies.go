package rawsql

import "database/sql"

// Replies are all replies of an engine to the statements and procedures of locks, of Once and of
// versions. Any other is no reply.
type Replies struct {
	// IDs has, for each statement that answers with an insert id, the ids that are no token. A
	// token is above all of them, and above 1, the id of what has made a row.
	IDs map[string][]int64
	// Outcomes has, for each procedure that locks one row, the words that it answers with. The
	// word of a reply without a row is "".
	Outcomes map[string]map[string]Outcome
	// Numbers has the highest number that each procedure answers with which answers with one.
	Numbers map[string]uint64
	// Lists are the procedures that answer with a row for each key.
	Lists []string
}

// Outcome is what stands beside the word of a reply: the token, and what it was compared with or
// the snapshot shows.
type Outcome struct {
	Token, Old Column
}

// Column is what a column of a reply has.
type Column int

// The kinds of columns.
const (
	Anything Column = iota // NULL, too, but no token out of range
	Null
	Zero
	Present // a token, or 0, which was never granted
	Granted // a token
)

// Has reports whether a column has a value.
func (c Column) Has(n sql.Null[uint64]) bool {
	if n.Valid && n.V>>63 != 0 {
		return false
	}
	switch c {
	case Null:
		return !n.Valid
	case Zero:
		return n.Valid && n.V == 0
	case Present:
		return n.Valid
	case Granted:
		return n.Valid && n.V > 0
	}
	return true
}
