// Package session refuses sessions of the server on which locks would not hold.
package session

import (
	"strings"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/schema"
)

// Fit returns what is wrong with a session: schema.ErrAutocommit, schema.ErrCharset, or
// nil. The text is what the session says of itself, by rawsql.Facts or ServerClock.
func Fit(text string) error {
	switch {
	case strings.HasPrefix(text, rawsql.NoAutocommit):
		return schema.ErrAutocommit
	case strings.HasPrefix(text, rawsql.OtherCharset):
		return schema.ErrCharset
	}
	return nil
}
