package rawsql

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// Statement is a statement with its arguments.
type Statement struct {
	Query string
	Args  []any
}

// Text is the statement with its arguments in it; see Inline.
func (s Statement) Text() (string, bool) { return Inline(s.Query, s.Args) }

// Inline writes the arguments of a statement into its text, so that nothing has to be
// prepared: numbers in decimal, strings and bytes as hexadecimal literals, which need no
// quoting and have no character set. It returns false for an argument of another type,
// and if the number of arguments isn't the number of question marks. Every question mark
// in the text must stand for an argument.
func Inline(query string, args []any) (string, bool) {
	if strings.Count(query, "?") != len(args) {
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
