// Package marks has what txlock and its stand-in in package locktest mark errors with.
package marks

import "errors"

// ErrGiven marks an ErrConflict that is not to be started again.
var ErrGiven = errors.New("another run of this transaction would find the same again")
