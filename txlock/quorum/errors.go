package quorum

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dca00107/lockstep/txlock"
)

// majorityError is the error if fewer nodes than needed have done something. It says
// which nodes have not, and why.
type majorityError struct {
	sentinel error
	needed   int
	nodes    []error // by node; nil if it has done it, or if that is not known
}

func (e *majorityError) Error() string {
	var why strings.Builder
	fmt.Fprintf(&why, "%v: %d of %d databases are needed", e.sentinel, e.needed, len(e.nodes))
	for i, err := range e.nodes {
		if err != nil {
			fmt.Fprintf(&why, "; node %d: %v", i, err)
		}
	}
	return why.String()
}

// Unwrap returns the sentinel and the errors of the nodes. It leaves out errors of single nodes
// that would look like the error of the whole lease: that a node is busy, has lost its lease or
// has not answered within a limit. Of a node that is busy it returns the holder there, if that
// is known.
func (e *majorityError) Unwrap() []error {
	all := []error{e.sentinel}
	for _, err := range e.nodes {
		var held *txlock.HeldError
		if errors.As(err, &held) {
			all = append(all, held)
		}
		if err != nil && !isAny(err, txlock.ErrBusy, txlock.ErrLost, txlock.ErrNotHeld, txlock.ErrWaitTimeout, context.DeadlineExceeded, context.Canceled) {
			all = append(all, err)
		}
	}
	return all
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
