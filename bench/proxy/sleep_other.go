//go:build !linux

package proxy

import "time"

// sleeper waits by timers of Go, which may be late by a millisecond.
type sleeper struct{}

func newSleeper() (*sleeper, error) { return &sleeper{}, nil }

func (*sleeper) until(due time.Time) error {
	time.Sleep(time.Until(due))
	return nil
}

func (*sleeper) close() error { return nil }
