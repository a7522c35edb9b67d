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
// queries/: "lockstep LockNamed".
func statement(text string) string {
	if own := ownStatement.FindStringSubmatch(text); own != nil {
		return "lockstep " + own[1]
	}
	return strings.TrimSpace(whiteSpace.ReplaceAllString(text, " "))
}
