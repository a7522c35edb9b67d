package rawsql

import "strings"

// Call calls a procedure of package schema in an open transaction. Its first argument, NULL,
// says that one is open. A nil argument is NULL in the text, since [Inline] has no room for
// one.
func Call(procedure string, args ...any) (query string, rest []any) {
	var text strings.Builder
	text.WriteString("CALL " + procedure + "(NULL")
	for _, arg := range args {
		if arg == nil {
			text.WriteString(", NULL")
			continue
		}
		text.WriteString(", ?")
		rest = append(rest, arg)
	}
	text.WriteString(")")
	return text.String(), rest
}
