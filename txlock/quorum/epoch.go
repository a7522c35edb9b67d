package quorum

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/txlock"
)

// A database that comes back empty has forgotten who holds what. So each database has an
// epoch, which its first use begins at the time of the server's clock. The database counts
// when its epoch is older than the longest TTL and the clock skew together: all that was
// granted before the data were lost has expired by then, and the clock is past its tokens.
// It is the delayed restart of the Redlock page
// (redis.io/docs/latest/develop/use/patterns/distributed-locks), and it happens by itself.

// errRecovering is the reason why a database with new data doesn't count.
var errRecovering = errors.New("its data are new")

// counts returns nil if the data of a node are old enough to count.
func (m *Manager) counts(ctx context.Context, node int) error {
	epoch, err := inner.Epoch(ctx, m.nodes[node])
	if err == nil && epoch.ID == "" {
		epoch, err = inner.BeginEpoch(ctx, m.nodes[node], 0)
	}
	if err != nil {
		return err
	}
	if err := m.distinct(node, epoch.ID); err != nil {
		return err
	}
	if left := m.options.recovery() - epoch.Age; left > 0 {
		return fmt.Errorf("%w: it counts in %v, when no earlier lease can be held (MaxTTL, ClockSkew)", errRecovering, left.Round(time.Millisecond))
	}
	return nil
}

// distinct returns an error if a node has the data of another node, and would be counted
// twice.
func (m *Manager) distinct(node int, epoch string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epochs[node] = epoch
	for other, known := range m.epochs {
		if other != node && known == epoch {
			return fmt.Errorf("%w: nodes %d and %d are the same database, or one is a copy of the other: delete the row 'lockstep:epoch' of lockstep_leases in a copy",
				txlock.ErrInvalidOption, min(node, other), max(node, other))
		}
	}
	return nil
}

// installed is the age of the epoch that Install gives to new databases.
const installed = 10 * 365 * 24 * time.Hour

// Install makes databases that have never been used count at once. Without it they count when
// MaxTTL and ClockSkew have passed since the first Acquire. It does so only if all of them
// answer and none has been used before: a single new one among others may have lost its data,
// and must wait. So a program may call it at every start, after schema.Install. What looks to
// it like an installation is that all databases have lost their data within one MaxTTL.
//
// It returns txlock.ErrNoQuorum with the errors of the nodes if one of them doesn't
// answer, after which it may be repeated, and ErrClosed.
func (m *Manager) Install(ctx context.Context) error {
	if ctx == nil {
		return errors.New("quorum: Install needs a context, got nil")
	}
	if err := m.open(); err != nil {
		return err
	}
	epochs := make([]leaseutil.Epoch, len(m.nodes))
	errs := each(len(m.nodes), func(i int) (err error) {
		epochs[i], err = inner.Epoch(ctx, m.nodes[i])
		return err
	})
	if done(errs) == len(errs) {
		age := installed
		for _, epoch := range epochs {
			if epoch.ID != "" {
				age = 0
			}
		}
		errs = each(len(m.nodes), func(i int) (err error) {
			if epochs[i].ID == "" {
				epochs[i], err = inner.BeginEpoch(ctx, m.nodes[i], age)
			}
			return err
		})
	}
	if done(errs) < len(errs) {
		return fmt.Errorf("install quorum: %w", &majorityError{txlock.ErrNoQuorum, len(errs), errs})
	}
	for i, epoch := range epochs {
		if err := m.distinct(i, epoch.ID); err != nil {
			return fmt.Errorf("install quorum: %w", err)
		}
	}
	return nil
}
