// Package marks is going: its mark is in package fault.
package marks

import "github.com/dca00107/lockstep/internal/fault"

// ErrGiven is fault.ErrGiven.
var ErrGiven = fault.ErrGiven
