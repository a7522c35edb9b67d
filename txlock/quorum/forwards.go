package quorum

import "github.com/dca00107/lockstep/txlock/lease"

// What is in this file is going: it is for packages that don't use package inside yet.

// Check is inside.Quorum.Check.
func Check(managers int, terms lease.Terms, opts ...Option) error {
	return check(managers, terms, opts...)
}
