package quorum

import "github.com/dca00107/lockstep/txlock/internal/nodes"

// What is in this file is going: it is for packages that don't use package inside yet.

// Check is inside.Quorum.Check.
func Check(managers int, terms nodes.Terms, opts ...Option) error {
	return check(managers, terms, opts...)
}
