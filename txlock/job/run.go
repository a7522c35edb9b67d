package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	// mostWait is how long Run waits without a look at the server's clock, which may be
	// set.
	mostWait = time.Minute
	// mostBusy is the longest pause of a process that waits for another one's tick.
	mostBusy = 2 * time.Second
)

// Run calls fn at the instants of the schedule, once per cluster, as Tick does, until the
// context ends or Close is called. Run it in all processes: whichever comes first works,
// and when that one dies another takes over after the TTL of the leases. Run returns the
// context's error, whose end also ends the context of fn; after Close it returns nil, when
// fn has returned. Instants from before the first Run of a key, by whichever process,
// don't count as missed.
//
// Only the server's clock decides. If it is set back, no instant comes a second time; if
// it is set forward, the instants in between were missed: see Missed.
//
// An fn that fails is called again after a pause, until the next instant: see RetryAfter.
// One that was interrupted, by the loss of the lease, by Close or by the end of the
// context, is called again by another process at once, and under CatchUpAll also later; under
// CatchUpLatest and SkipMissed it is skipped when the next instant has come.
// Errors of fn and of the server are told to the observer, and Run goes on. Only what the
// first look at the table says is returned: txlock.ErrSchema, txlock.ErrReadOnly and the
// like; as are txlock.ErrInvalidKey and txlock.ErrInvalidOption, before anything is sent,
// ErrPast when the schedule is over, and schema.ErrEngine at any time.
//
// A process that waits sends one SELECT at each instant, at least one a minute, and while
// another one runs the tick one every 2 seconds.
func (j *Jobs) Run(ctx context.Context, key txlock.Key, s Schedule, fn Func, opts ...RunOption) error {
	if fn == nil {
		return errors.New("job: Run needs a function, got nil")
	}
	return j.run(ctx, key, s, j.plainly(fn), opts)
}

// RunTx does what Run does, with the transaction of TickTx.
func (j *Jobs) RunTx(ctx context.Context, key txlock.Key, s Schedule, fn TxFunc, opts ...RunOption) error {
	if fn == nil {
		return errors.New("job: RunTx needs a function, got nil")
	}
	return j.run(ctx, key, s, j.inTransaction(fn), opts)
}

func (j *Jobs) run(ctx context.Context, key txlock.Key, s Schedule, do work, opts []RunOption) error {
	if ctx == nil {
		return errors.New("job: the call needs a context, got nil")
	}
	leave, err := j.enter()
	if err != nil {
		return nil // as if Close had come a moment later
	}
	defer leave()
	how := running{key: key, schedule: s, grace: time.Minute}
	for _, option := range opts {
		option(&how)
	}
	if err := errors.Join(check(ctx, key, time.Unix(0, 0)), s.check(), how.bad); err != nil {
		return err
	}
	if err := j.register(ctx, key); err != nil {
		return err
	}
	for busy := leastPause; ; {
		wait, err := j.step(ctx, &how, do)
		switch {
		case errors.Is(err, schema.ErrEngine):
			return err
		case errors.Is(err, txlock.ErrBusy):
			wait, busy = jittered(busy), min(2*busy, mostBusy)
		case errors.Is(err, errOver):
			return fmt.Errorf("job %q: %w: the schedule has no further instant", key, ErrPast)
		case err != nil && ctx.Err() == nil:
			j.tell(ctx, Event{Kind: RunError, Key: key, Err: err})
			wait, busy = jittered(max(busy, 20*leastPause)), min(2*busy, mostBusy)
		default:
			busy = leastPause
		}
		if err := j.pause(ctx, wait); err != nil {
			if errors.Is(err, ErrClosed) {
				return nil
			}
			return err
		}
	}
}

// register makes the row of a job that has none: what is past is not due.
func (j *Jobs) register(ctx context.Context, key txlock.Key) error {
	r, now, err := j.ledger.look(ctx, key.String())
	if err == nil && !r.known {
		err = j.ledger.make(ctx, key.String(), now)
	}
	return err
}

// errOver is returned by step when the schedule has no instant any more.
var errOver = errors.New("over")

// step looks at the job, and begins a tick that is due. It returns for how long to wait
// before the next look, and txlock.ErrBusy while another process runs a tick.
func (j *Jobs) step(ctx context.Context, how *running, do work) (time.Duration, error) {
	r, now, err := j.ledger.look(ctx, how.key.String())
	if err != nil {
		return 0, err
	}
	if !r.known { // somebody has deleted it
		return 0, j.register(ctx, how.key)
	}
	p := how.next(r, now)
	p.at = how.schedule.inZone(p.at)
	switch {
	case !p.until.IsZero():
		return min(p.until.Sub(now), mostWait), nil
	case p.at.IsZero():
		return 0, errOver
	}
	// What is told as left must be so when the tick begins, too.
	left := how.schedule.Next(time.UnixMicro(max(r.TickUs, r.DoneUs)))
	if r.open() && !r.hasFailed() {
		left = r.tick() // its process has died
	}
	leaves := left.Before(p.at) && !left.IsZero()
	c, err := j.begin(ctx, how.key, p.at, how.schedule.Next(p.at), r, leaves)
	switch {
	case errors.Is(err, ErrDone), errors.Is(err, ErrPast):
		return 0, nil // somebody was faster
	case errors.Is(err, lease.ErrClosed):
		return mostBusy, err
	case err != nil:
		return 0, err
	}
	if leaves {
		j.tell(ctx, Event{Kind: Skipped, Key: how.key, At: p.at, From: left})
	}
	_ = do(ctx, c) // the observer is told
	return 0, nil
}
