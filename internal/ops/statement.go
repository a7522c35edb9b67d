package ops

import (
	"regexp"
	"strings"
)

var (
	ownStatement = regexp.MustCompile(`-- name: (\w+)`)
	whiteSpace   = regexp.MustCompile(`\s+`)
)

// statement writes a statement in one line, and one of lockstep's own by its name in
// queries/: "lockstep LockNamed". Those that sqlc has made for the program have such names, too,
// but are about other tables.
func statement(text string) string {
	if own := ownStatement.FindStringSubmatch(text); own != nil && strings.Contains(text, "lockstep_") {
		return "lockstep " + own[1]
	}
	return strings.TrimSpace(whiteSpace.ReplaceAllString(text, " "))
}
