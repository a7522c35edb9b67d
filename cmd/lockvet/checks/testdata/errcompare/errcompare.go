// Package errcompare compares errors.
package errcompare

import (
	"database/sql"
	"errors"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func wrong(err error) bool {
	if err == txlock.ErrBusy { // want `compare with ErrBusy by errors.Is`
		return true
	}
	if lease.ErrClosed != err { // want `compare with ErrClosed by errors.Is`
		return false
	}
	switch err {
	case txlock.ErrDeadlock, txlock.ErrLost: // want `compare with ErrDeadlock` `compare with ErrLost`
		return true
	}
	return false
}

func right(err error) bool {
	if err == nil || err == sql.ErrNoRows {
		return false
	}
	switch {
	case errors.Is(err, txlock.ErrDeadlock):
		return true
	}
	return errors.Is(err, txlock.ErrBusy)
}

type failure struct{}

func (failure) Error() string { return "failure" }

func (failure) Is(target error) bool { return target == txlock.ErrBusy }
