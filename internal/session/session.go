package session

import (
	"strings"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/schema"
)

// Fit returns what is wrong with a session: schema.ErrEngine, schema.ErrAutocommit,
// schema.ErrCharset, or nil. The text is what the session says about itself: the name in rawsql.Facts, the
// version in gen's ServerClock, or the words in its LookJob.
func Fit(text string) error {
	switch {
	case strings.HasPrefix(text, rawsql.OtherEngine):
		return schema.ErrEngine
	case strings.HasPrefix(text, rawsql.NoAutocommit):
		return schema.ErrAutocommit
	case strings.HasPrefix(text, rawsql.OtherCharset):
		return schema.ErrCharset
	}
	return nil
}

// Version returns the version in gen's ServerClock without what the session says about
// itself. It may have blanks: Debian's MariaDB 11.8 ends in "-MariaDB-0+deb13u1 from Debian".
func Version(text string) string {
	text = strings.TrimPrefix(text, rawsql.OtherEngine+" ")
	text = strings.TrimPrefix(text, rawsql.NoAutocommit+" ")
	return strings.TrimPrefix(text, rawsql.OtherCharset+" ")
}
