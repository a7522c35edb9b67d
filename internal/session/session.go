package session

import (
	"strings"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/schema"
)

// Fit returns what is wrong with a session: schema.ErrAutocommit, schema.ErrCharset, or
// nil. The text is what the session says about itself: the name in rawsql.Facts, or the
// version in gen's ServerClock.
func Fit(text string) error {
	switch {
	case strings.HasPrefix(text, rawsql.NoAutocommit):
		return schema.ErrAutocommit
	case strings.HasPrefix(text, rawsql.OtherCharset):
		return schema.ErrCharset
	}
	return nil
}
