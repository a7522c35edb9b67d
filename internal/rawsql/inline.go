package rawsql

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// Inline writes the arguments of a statement into its text, so that nothing has to be
// prepared: numbers in decimal, strings and bytes as hexadecimal literals, which need no
// quoting and have no character set. It returns false for an argument of another type,
// and if the number of arguments isn't the number of question marks. Every question mark
// in the text must stand for an argument.
func Inline(query string, args []any) (string, bool) {
	if strings.Count(query, "?") != len(args) {
		return "", false
	}
	text := make([]byte, 0, len(query)+64*len(args))
	for _, arg := range args {
		at := strings.IndexByte(query, '?')
		text, query = append(text, query[:at]...), query[at+1:]
		switch v := arg.(type) {
		case int:
			text = strconv.AppendInt(text, int64(v), 10)
		case int32:
			text = strconv.AppendInt(text, int64(v), 10)
		case int64:
			text = strconv.AppendInt(text, v, 10)
		case uint32:
			text = strconv.AppendUint(text, uint64(v), 10)
		case uint64:
			text = strconv.AppendUint(text, v, 10)
		case string:
			text = appendHex(text, []byte(v))
		case []byte:
			if v == nil { // NULL
				return "", false
			}
			text = appendHex(text, v)
		default:
			return "", false
		}
	}
	return string(append(text, query...)), true
}

func appendHex(text, b []byte) []byte {
	return append(hex.AppendEncode(append(text, "X'"...), b), '\'')
}
