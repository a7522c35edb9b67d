// Package retry runs a business transaction again where the server has rolled it
// back.
package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dca00107/lockstep/internal/fault"
)

// Tries is how often a transaction is run at most, the first time included.
const Tries = 10

// Do runs the transaction, and again, after a jittered pause of 5 ms rising to
// about 500 ms, while its error is txlock.Retryable, ten times at most; it calls again
// before each pause. It returns the last error, and with it that of the context where this
// has ended.
func Do(ctx context.Context, transaction func() error, again func(why error)) error {
	pause := Pauses(5 * time.Millisecond)
	for try := 1; ; try++ {
		err := transaction()
		if err == nil || !fault.Retryable(err) {
			return err
		}
		if try == Tries {
			return fmt.Errorf("lockstep: given up after %d tries: %w", try, err)
		}
		again(err)
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("lockstep: %w, after %d tries: %w", ended, try, err)
		}
	}
}

// Pauses returns a function that pauses, jittered, so long at first and then twice as long each
// time, up to about 500 ms. It returns the context's error where this ends before.
func Pauses(first time.Duration) func(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = first
	pause.MaxInterval = 500 * time.Millisecond
	pause.Multiplier = 2
	return func(ctx context.Context) error {
		timer := time.NewTimer(pause.NextBackOff())
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
