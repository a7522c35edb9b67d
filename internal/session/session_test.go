package session_test

import (
	"testing"

	"github.com/dca00107/lockstep/internal/session"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"9.7.4", "10.11.14-MariaDB-0+deb12u2", "11.8.9-MariaDB-0+deb13u1 from Debian"} {
		for _, words := range []string{"", "autocommit=0 ", "character_set_connection ", "autocommit=0 character_set_connection ", "engine=other ", "engine=other autocommit=0 "} {
			if got := session.Version(words + version); got != version {
				t.Errorf("Version(%q) = %q, want %q", words+version, got, version)
			}
		}
	}
}
