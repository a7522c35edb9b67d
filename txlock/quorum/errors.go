package quorum

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dca00107/lockstep/txlock"
)

// majorityError is the error of what fewer than a majority of the nodes have done. It
// says which have not, and why.
type majorityError struct {
	sentinel error
	needed   int
	nodes    []error // by node; nil where it was done, or is not known
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

// Unwrap hands on the sentinel and the errors of the nodes, but not those that would
// be taken for an answer of all: a node that is busy, or has lost its part, and a limit
// that is not the caller's.
func (e *majorityError) Unwrap() []error {
	all := []error{e.sentinel}
	for _, err := range e.nodes {
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
