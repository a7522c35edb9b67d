package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/txlock"
)

// retryPause is the time between two attempts at a row that is locked.
const retryPause = 5 * time.Millisecond

// Info is what the database knows of a lease.
type Info struct {
	Key   txlock.Key
	Owner string        // who holds it, or held it last; see WithOwner
	Token uint64        // of the last grant
	Held  bool          // somebody holds it
	Left  time.Duration // for how much longer, if it isn't renewed
	TTL   time.Duration
	Holds int // how often the owner has entered it, counting one for each manager
}

// List returns the leases that are held by anybody, in the order of their keys. It
// waits for nobody. It returns txlock.ErrSchema, ErrClosed and the errors of the
// driver.
func (m *Manager) List(ctx context.Context) ([]Info, error) {
	if err := m.open(); err != nil {
		return nil, err
	}
	const page = 1000
	var all []Info
	params := gen.ListLeasesParams{After: []byte{}, Limit: page}
	for {
		rows, err := queries.ListLeases(ctx, m.db, params)
		if err != nil {
			return nil, txlock.Explain("list leases", err)
		}
		for _, row := range rows {
			all = append(all, infoOf(gen.InspectLeaseRow(row)))
		}
		if len(rows) < page {
			return all, nil
		}
		params.After = rows[page-1].Name
	}
}

// Inspect returns what is known of the lease of a key. One that was never acquired
// is simply not held. The errors are those of List, and txlock.ErrInvalidKey.
func (m *Manager) Inspect(ctx context.Context, key txlock.Key) (Info, error) {
	if err := key.Validate(); err != nil {
		return Info{}, err
	}
	if err := m.open(); err != nil {
		return Info{}, err
	}
	row, err := queries.InspectLease(ctx, m.db, gen.InspectLeaseParams{Name: []byte(key.String()), Slot: leaseSlot})
	if errors.Is(err, sql.ErrNoRows) {
		return Info{Key: key}, nil
	}
	if err != nil {
		return Info{}, txlock.Explain(fmt.Sprintf("inspect lease %q", key), err)
	}
	info := infoOf(row)
	info.Key = key
	return info, nil
}

func infoOf(row gen.InspectLeaseRow) Info {
	return Info{
		Key: txlock.Named(string(row.Name)), Owner: string(row.Owner), Token: row.Token,
		Held: row.LeftUs > 0 && row.HoldsLength > 0, Left: micros(row.LeftUs), TTL: micros(row.TtlUs),
		Holds: int(row.HoldsLength / holdLength),
	}
}

// ForceRelease takes a lease away from whoever holds it, for an operator who knows
// that the holder is gone. The next holder's token is higher. The old holder is told
// ErrLost by its next renewal or Guard, and may believe until then that it holds the
// lease, an Acquire that enters it again in the same manager included; what it has
// guarded can't be committed. Where a transaction guards the lease it waits for its
// end, by trying again.
//
// It returns txlock.ErrNotHeld where nobody holds the lease, ErrInvalidKey, ErrSchema,
// ErrClosed, the errors of the driver and the context's.
func (m *Manager) ForceRelease(ctx context.Context, key txlock.Key) error {
	if err := key.Validate(); err != nil {
		return err
	}
	if err := m.open(); err != nil {
		return err
	}
	what := fmt.Sprintf("release lease %q by force", key)
	for {
		reply, err := queries.ForceRelease(ctx, m.db, gen.ForceReleaseParams{Name: []byte(key.String()), Slot: leaseSlot})
		switch {
		case err != nil:
			return txlock.Explain(what, err)
		case reply >= firstToken:
			m.freed(key)
			return nil
		case reply == replyRefused:
			return fmt.Errorf("%s: %w", what, txlock.ErrNotHeld)
		}
		seen, err := lookAt(ctx, m.db, key, leaseSlot)
		if err != nil {
			return txlock.Explain(what, err)
		}
		if !seen.exists {
			return fmt.Errorf("%s: %w", what, txlock.ErrNotHeld)
		}
		if err := m.sleep(ctx, retryPause); err != nil {
			return fmt.Errorf("%s: a transaction guards it: %w", what, err)
		}
	}
}
