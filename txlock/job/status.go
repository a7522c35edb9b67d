package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Status is what the table says of a job. Times are those of the server's clock; a zero one
// is none.
type Status struct {
	Key      string
	Tick     time.Time     // the instant that was begun last
	Done     time.Time     // the instant that was done last
	Running  bool          // the tick was begun and has not ended: it runs, or its process has died
	Instance string        // the process that has begun it: see InstanceName
	Token    uint64        // of its lease
	Started  time.Time     // when
	Ended    time.Time     // when it has ended, if it has
	Took     time.Duration // of the last that has ended
	Failures int           // of this tick, so far
	Err      string        // the last error of the tick; empty when it was done
	Next     time.Time     // the instant after Tick, for a job of Run and RunTx
}

// Status returns what the table says of a job, and txlock.ErrNotHeld for one that has no
// row there.
func (j *Jobs) Status(ctx context.Context, key txlock.Key) (Status, error) {
	if ctx == nil {
		return Status{}, errors.New("job: Status needs a context, got nil")
	}
	if err := key.Validate(); err != nil {
		return Status{}, err
	}
	r, _, err := j.ledger.look(ctx, key.String())
	if err != nil {
		return Status{}, err
	}
	if !r.known {
		return Status{}, fmt.Errorf("job %q: %w: nobody has begun or run it", key, txlock.ErrNotHeld)
	}
	return r.status(), nil
}

// List returns what the table says of all jobs, by their keys.
func (j *Jobs) List(ctx context.Context) ([]Status, error) {
	if ctx == nil {
		return nil, errors.New("job: List needs a context, got nil")
	}
	rows, err := j.ledger.list(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Status, len(rows))
	for i, r := range rows {
		all[i] = r.status()
	}
	return all, nil
}

func (r row) status() Status {
	s := Status{
		Key: string(r.Name), Token: r.Token, Failures: int(r.Failures), Took: time.Duration(r.TookUs) * time.Microsecond,
		Done: at(r.DoneUs), Started: at(r.StartedUs), Ended: at(r.EndedUs), Next: at(r.NextUs),
	}
	if r.Token > 0 { // else it was made and never begun
		s.Tick, s.Instance, s.Running = at(r.TickUs), string(r.Owner), r.open() && r.EndedUs == 0
	} else {
		s.Done = time.Time{}
	}
	if text := string(r.Error); text != "-" {
		s.Err = text
	}
	return s
}

// at is a time of the table, which has 0 and less for none.
func at(us int64) time.Time {
	if us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}
