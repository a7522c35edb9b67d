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
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 5 * time.Millisecond
	pause.MaxInterval = 500 * time.Millisecond
	pause.Multiplier = 2
	for try := 1; ; try++ {
		err := transaction()
		if err == nil || !fault.Retryable(err) {
			return err
		}
		if try == Tries {
			return fmt.Errorf("lockstep: given up after %d tries: %w", try, err)
		}
		again(err)
		timer := time.NewTimer(pause.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("lockstep: %w, after %d tries: %w", ctx.Err(), try, err)
		}
	}
}
