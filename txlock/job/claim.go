package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/procname"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// markTime is for how long the end of a tick is tried to be marked, while the server
// can't be reached.
const markTime = 10 * time.Second

// silentConns is how many connections of the pool may be silent: as many as database/sql keeps.
const silentConns = 2

// A Claim is a tick that this process has started, with its lease. Finish ends it. Its methods may
// be called from any goroutine.
type Claim struct {
	jobs  *Jobs
	key   txlock.Key
	tick  beginning
	lease *lease.Lease
	timer stopwatch

	started     time.Time // by the server's clock, a moment before
	interrupted bool      // the work was: it has not failed by itself
	finish      sync.Once
	result      error
	committed   bool // the row says that the tick was done
}

// Claim starts a tick for a program that does the work itself and then calls Finish; Tick does
// both. It doesn't wait. It returns txlock.ErrBusy while another process runs a tick of the key,
// ErrDone for a tick that is done, ErrPast if a later one was started, ErrEarly for a time that is
// ahead of the server's clock, txlock.ErrInvalidKey, txlock.ErrInvalidOption, ErrClosed, and the
// errors of the lease's TryAcquire.
//
// ErrDone reports what the server shows. A server without a binary log may lose the mark if it is
// killed at that moment. Tick waits until the mark is on disk; Claim doesn't, because many
// processes may claim a tick.
func (j *Jobs) Claim(ctx context.Context, key txlock.Key, at time.Time) (*Claim, error) {
	return j.claimNow(ctx, key, nothingComing, func(now time.Time) (time.Time, error) {
		if at.After(now) {
			return at, early(key, at, now)
		}
		return at, j.check(ctx, key, at)
	})
}

// ClaimNearest starts the tick of the schedule that is nearest to the current time of the server,
// past or future. It is for schedulers whose processes ask at about the same time, each by its own
// clock, which may be wrong by less than half of the time between two ticks. It returns the errors
// of Claim.
func (j *Jobs) ClaimNearest(ctx context.Context, key txlock.Key, s Schedule) (*Claim, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	return j.claimNow(ctx, key, s.coming, func(now time.Time) (time.Time, error) {
		at := s.inZone(s.nearest(now))
		if at.IsZero() {
			return at, fmt.Errorf("%w: the schedule of job %q has no time near %v", ErrEarly, key, now.UTC())
		}
		return at, j.check(ctx, key, at)
	})
}

// nothingComing is for ticks without a schedule.
func nothingComing(time.Time) coming { return coming{} }

// claimNow claims the tick that choose returns for the server's time, without waiting.
func (j *Jobs) claimNow(ctx context.Context, key txlock.Key, after func(at time.Time) coming, choose func(now time.Time) (time.Time, error)) (*Claim, error) {
	if ctx == nil {
		return nil, errors.New("job: the call needs a context, got nil")
	}
	leave, err := j.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := key.Validate(); err != nil {
		return nil, err
	}
	r, now, err := j.ledger.look(ctx, key.String())
	if err != nil {
		return nil, err
	}
	at, err := choose(now)
	if err != nil {
		return nil, err
	}
	if err := refused(key, r, at); err != nil {
		return nil, err
	}
	return j.begin(ctx, key, at, after(at), r, false)
}

// check returns what is wrong with a tick.
func (j *Jobs) check(ctx context.Context, key txlock.Key, at time.Time) error {
	if err := key.Validate(); err != nil {
		return err
	}
	if at.Before(time.Unix(0, 0)) || at.Year() > 9999 {
		return fmt.Errorf("%w: job %q: the time %v is not in the years from 1970 to 9999", txlock.ErrInvalidOption, key, at.UTC())
	}
	for o := leaseutil.Owners(ctx); o != nil; o = o.Outer {
		if o.Lease != nil && o.Lease.Key().String() == key.String() && o.Lease.Err() == nil {
			return fmt.Errorf("%w: job %q: the context holds the lease of this key, and the tick would wait for itself", txlock.ErrInvalidOption, key)
		}
	}
	if c, is := j.functions.Load(function{procname.Goroutine(), key.String()}); is && c.(*Claim).lease.Err() == nil {
		return fmt.Errorf("%w: job %q: the call is made inside the function of a tick of this key, and would wait for itself", txlock.ErrInvalidOption, key)
	}
	return nil
}

// function is the function of a tick, which runs in a goroutine.
type function struct {
	goroutine uintptr
	key       string
}

func early(key txlock.Key, at, now time.Time) error {
	return fmt.Errorf("%w: job %q: %v is %v ahead", ErrEarly, key, at.UTC(), at.Sub(now))
}

// refused returns why a tick can't be begun any more.
func refused(key txlock.Key, r row, at time.Time) error {
	switch us := at.UnixMicro(); {
	case !r.known:
		return nil
	case r.DoneUs == us:
		return fmt.Errorf("%w: job %q: %v", ErrDone, key, at.UTC())
	case max(r.TickUs, r.DoneUs) > us: // this one was done before, or has failed, or was left out
		return fmt.Errorf("%w: job %q: %v, and %v is older", ErrPast, key, time.UnixMicro(max(r.TickUs, r.DoneUs)).UTC(), at.UTC())
	case r.PausedUs != 0 && r.RunUs != us:
		return fmt.Errorf("%w: job %q: by %q since %v: call Resume", ErrPaused, key, r.PausedBy, time.UnixMicro(r.PausedUs).UTC())
	}
	return nil
}

// begin acquires the lease and begins the tick, without waiting. The row is as it was
// seen a moment ago; if it must be so still, a row that has changed is ErrPast.
func (j *Jobs) begin(ctx context.Context, key txlock.Key, at time.Time, next coming, seen row, still bool) (_ *Claim, err error) {
	l, err := j.leases.TryAcquire(ctx, key)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fault.Join(err, l.Release(ctx))
		}
	}()
	c := &Claim{
		jobs: j, key: key, lease: l, timer: newStopwatch(), started: time.UnixMicro(seen.NowUs),
		tick: beginning{key: key.String(), at: at, coming: next, instance: j.instance, token: l.Token(), keep: j.keep},
	}
	if seen.runs() {
		c.tick.diedAs, c.tick.died = seen.Token, jobrow.Run{
			At: seen.tick(), Started: time.UnixMicro(seen.StartedUs), Took: time.Duration(max(0, seen.NowUs-seen.StartedUs)) * time.Microsecond,
			Outcome: jobrow.Interrupted, Instance: string(seen.Owner),
		}
	}
	if !seen.known {
		if err := j.ledger.make(ctx, key.String(), never, coming{}); err != nil {
			return nil, err
		}
	}
	if still {
		r, _, err := j.ledger.look(ctx, key.String())
		if err != nil {
			return nil, err
		}
		if r.TickUs != seen.TickUs || r.DoneUs != seen.DoneUs {
			return nil, ErrPast
		}
	}
	began, err := j.ledger.begin(ctx, c.tick)
	if err != nil {
		return nil, err
	}
	if !began { // somebody was faster
		r, _, err := j.ledger.look(ctx, key.String())
		if err == nil {
			err = refused(key, r, at)
		}
		if err == nil {
			err = fmt.Errorf("start job %q: %w: under the same owner's lease", key, txlock.ErrBusy)
		}
		return nil, err
	}
	j.tell(ctx, Event{Kind: Began, Key: key, At: at})
	return c, nil
}

// At returns the scheduled time of the tick.
func (c *Claim) At() time.Time { return c.tick.at }

// Lease returns the lease that is held while the tick runs. Its token increases each time a tick
// of the key is started, so a system outside of the database can refuse a stale process.
func (c *Claim) Lease() *lease.Lease { return c.lease }

// Finish ends the tick and releases its lease. It marks the tick as done if why is nil, and as
// failed otherwise. A tick that fails after its lease was lost counts as interrupted, not as
// failed, as does that of a process that has crashed: the next process that tries restarts it.
//
// Finish may be called after the context has ended. While the server can't be reached it retries
// for some seconds, then it returns the error, and the tick counts as not done. It returns
// txlock.ErrLost, and doesn't mark the tick, if the lease was lost and another process has started
// the tick or a later one. A second call does nothing, and returns the result of the first.
func (c *Claim) Finish(ctx context.Context, why error) error {
	c.finish.Do(func() {
		if why != nil && errors.Is(c.lease.Err(), txlock.ErrLost) {
			c.interrupted = true
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTime)
		defer cancel()
		marked := c.mark(ending, why)
		released := c.lease.Release(ending)
		if errors.Is(released, lease.ErrGuarded) || errors.Is(released, txlock.ErrLost) || errors.Is(released, txlock.ErrNotHeld) {
			released = nil // it ends with the transaction, or has ended before
		}
		c.result = fault.Join(marked, released)
		e := Event{Kind: Done, Key: c.key, At: c.tick.at, Took: c.timer.elapsed(), Err: c.result}
		if marked != nil || why != nil && !c.committed {
			e.Kind, e.Err = Failed, fault.Join(why, c.result)
			if c.interrupted {
				e.Kind = Interrupted
			}
		}
		c.jobs.tell(ctx, e)
	})
	return c.result
}

// mark writes how the tick has ended, and tries again while the server can't be reached.
func (c *Claim) mark(ctx context.Context, why error) error {
	for pause, try := leastTick, 1; ; pause, try = 2*pause, try+1 {
		limit := markTime // a new connection may take long to open
		if try <= silentConns {
			limit = markTime / 4
		}
		if c.committed {
			return nil
		}
		if c.interrupted {
			// As if the process had died: another one begins the tick again.
			_, err := c.isMarked(ctx, why)
			return err
		}
		marked, err := c.markOnce(ctx, limit, why)
		switch {
		case marked:
			return nil
		case err == nil:
			return fmt.Errorf("job %q, token %d: %w: another process has started it", c.key, c.tick.token, txlock.ErrLost)
		case leaseutil.Pause(ctx, pause, nil) != nil:
			return err
		}
	}
}

// markOnce tries once to mark the tick, within the limit, and reports whether it is marked.
func (c *Claim) markOnce(ctx context.Context, limit time.Duration, why error) (marked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if marked, err = c.write(ctx, why); err == nil && !marked {
		// The row is not ours any more, or what was sent before has succeeded unseen.
		marked, err = c.isMarked(ctx, why)
	}
	return marked, err
}

func (c *Claim) write(ctx context.Context, why error) (bool, error) {
	if why == nil {
		return c.jobs.ledger.done(ctx, c.tick, c.run(jobrow.Done, ""))
	}
	return c.jobs.ledger.failed(ctx, c.tick, c.run(jobrow.Failed, why.Error()), why.Error())
}

// run is the run of the claim, as it ends now.
func (c *Claim) run(outcome, why string) jobrow.Run {
	return jobrow.Run{At: c.tick.at, Started: c.started, Took: c.timer.elapsed(), Outcome: outcome, Instance: c.jobs.instance, Err: why}
}

// isMarked reports whether the tick is marked already: as wanted, or as done by a transaction
// whose COMMIT was not answered.
func (c *Claim) isMarked(ctx context.Context, why error) (bool, error) {
	r, _, err := c.jobs.ledger.look(ctx, c.key.String())
	if err != nil || r.Token != c.tick.token || r.EndedUs == 0 {
		return false, err
	}
	c.committed = r.DoneUs == c.tick.at.UnixMicro()
	return c.committed || why != nil, nil
}
