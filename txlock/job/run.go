package job

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	// mostWait is how long Run waits without a look at the server's clock, which may be
	// set, and at whether a run was requested or the job was paused.
	mostWait = 10 * time.Second
	// leastError and mostPause bound the pause of a process that has met an error, and
	// mostPause of one that waits for another one's tick.
	leastError = 100 * time.Millisecond
	mostPause  = 2 * time.Second
	// mostApart bounds apart.
	mostApart = 50 * time.Millisecond
)

// Run calls fn at the times of the schedule, once per cluster, as Tick does, until the context
// ends or Close is called. Run it in all processes: the first one to start a tick works, and if it
// crashes another one takes over after the TTL of the leases. When the context ends, so does that
// of fn, and Run returns the context's error. After Close it returns nil when fn has returned.
// Times before the first Run of a key in any process don't count as missed.
//
// Only the server's clock decides. If it is set back, no tick runs twice; if it is set forward,
// the times in between are missed: see Missed.
//
// If fn fails, it is called again after a pause, until the next scheduled time: see RetryAfter. If
// fn was interrupted, by the loss of the lease, by Close or by the end of the context, another
// process calls it again within seconds. Once the next time has come, CatchUpAll still calls it,
// but CatchUpLatest and SkipMissed skip it.
//
// Run logs errors of fn and of the server, reports them to the observer and continues, also if the
// server can't be reached at first. It returns permanent errors: txlock.ErrInvalidKey and
// txlock.ErrInvalidOption, before it sends anything; schema.ErrEngine, lease.ErrClosed, and the
// error of a pool that was closed, at any time; and ErrPast after the last time of the schedule.
// If its first query of the table shows a permanent problem, Run returns it: txlock.ErrSchema,
// ErrReadOnly, ErrPrivilege, schema.ErrSession, or a wrong user or database.
//
// A waiting process sends one SELECT up to 50 ms after each scheduled time, at least one every 10
// seconds, and one every 2 seconds while another process runs the tick.
func (j *Jobs) Run(ctx context.Context, key txlock.Key, s Schedule, fn Func, opts ...RunOption) error {
	if fn == nil {
		return errors.New("job: Run needs a function, got nil")
	}
	return j.run(ctx, key, s, j.plainly(fn), opts)
}

// RunTx is Run with the transaction of TickTx.
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
	how := &running{key: key, schedule: s, grace: time.Minute}
	for _, option := range opts {
		option(how)
	}
	if err := errors.Join(j.check(ctx, key, time.Unix(0, 0)), s.check(), how.bad); err != nil {
		return err
	}
	r := runner{Jobs: j, running: how, do: do}
	for pause := leastError; ; {
		wait, err := r.step(ctx)
		switch {
		case errors.Is(err, errOver):
			return fmt.Errorf("job %q: %w: the schedule has no further time", key, ErrPast)
		case err == nil:
			pause = leastError
		case ctx.Err() != nil: // pause returns it
		case leaseutil.Permanent(err, r.registered) || errors.Is(err, lease.ErrClosed):
			return err
		default:
			j.tell(ctx, Event{Kind: RunError, Key: key, Err: err})
			wait, pause = jittered(pause), min(2*pause, mostPause)
		}
		if err := j.pause(ctx, wait); err != nil {
			if errors.Is(err, ErrClosed) {
				return nil
			}
			return err
		}
	}
}

// runner is a Run.
type runner struct {
	*Jobs
	*running
	do         work
	registered bool   // the server has served it once: its schedule is in the table
	differs    string // the other schedule that was reported last
}

// register makes the row of a job that has none: what is past is not due. It writes the
// schedule into one that has another.
func (j *runner) register(ctx context.Context, r row, now time.Time) (err error) {
	switch {
	case !r.known:
		err = j.ledger.make(ctx, j.key.String(), now, j.coming(now))
	case string(r.Schedule) != j.schedule.text:
		err = j.plan(ctx, r)
	}
	j.registered = j.registered || err == nil
	return err
}

// plan writes the schedule, and when the next tick is due by it.
func (j *runner) plan(ctx context.Context, r row) error {
	return j.ledger.plan(ctx, j.key.String(), r, j.coming(time.UnixMicro(max(r.TickUs, r.DoneUs))))
}

// errOver is returned by step when the schedule has no instant any more.
var errOver = errors.New("over")

// step looks at the job, and begins a tick that is due. It returns for how long to wait
// before the next look.
func (j *runner) step(ctx context.Context) (time.Duration, error) {
	r, now, err := j.ledger.look(ctx, j.key.String())
	if err != nil {
		return 0, err
	}
	if !j.registered || !r.known { // it is new, or was deleted
		return 0, j.register(ctx, r, now)
	}
	if err := j.compare(ctx, r); err != nil {
		return 0, err
	}
	how := j.at(r)
	p := how.next(r, now)
	p.at = how.schedule.inZone(p.at)
	switch {
	case !p.until.IsZero():
		return min(p.until.Sub(now)+apart(), mostWait), nil
	case p.at.IsZero():
		return 0, errOver
	}
	// What is told as skipped must be so when the tick begins, too.
	from := how.schedule.Next(time.UnixMicro(max(r.TickUs, r.DoneUs)))
	if r.runs() {
		from = r.tick() // its process has died
	}
	skips := from.Before(p.at) && !from.IsZero()
	c, err := j.begin(ctx, j.key, p.at, how.coming(p.at), r, skips)
	switch {
	case errors.Is(err, ErrDone), errors.Is(err, ErrPast), errors.Is(err, ErrPaused):
		return 0, nil // another process was faster
	case errors.Is(err, txlock.ErrBusy):
		wait := jittered(mostPause)
		if next := how.schedule.Next(p.at); next.After(now) {
			wait = min(wait, how.due(next).Sub(now)+apart())
		}
		return wait, nil
	case err != nil:
		return 0, err
	}
	if skips {
		j.tell(ctx, Event{Kind: Skipped, Key: j.key, At: p.at, From: from})
	}
	defer c.watch(ctx, j.limit)()
	_ = j.do(ctx, c) // the observer is told
	return 0, nil
}

// compare reports a schedule in the table that another process has written, once to this process
// and at each look to the table. If no process has begun what is due by it, none has it any more.
func (j *runner) compare(ctx context.Context, r row) error {
	other := string(r.Schedule)
	if other == j.schedule.text || other == "" {
		return nil
	}
	if other != j.differs {
		j.differs = other
		j.tell(ctx, Event{Kind: ScheduleDiffers, Key: j.key, Err: fmt.Errorf("job %q: another process runs it by %s, this one by %s; %q started the last tick", j.key, other, j.schedule, r.Owner)})
	}
	if h := jobrow.Of(r.ListJobsRow, r.NowUs); h.Overdue > 0 {
		return j.plan(ctx, r)
	}
	return j.ledger.differs(ctx, j.key.String(), j.schedule.text)
}

// apart is by how much processes that wait for the same time look after it, so that most
// find that another one has begun.
func apart() time.Duration { return rand.N(mostApart) }

// watch reports a tick that takes longer than the limit, until stop is called.
func (c *Claim) watch(ctx context.Context, limit time.Duration) (stop func()) {
	if limit == 0 {
		return func() {}
	}
	timer := time.AfterFunc(limit, func() {
		c.jobs.tell(ctx, Event{Kind: TooLong, Key: c.key, At: c.tick.at, Took: c.timer.elapsed()})
	})
	return func() { timer.Stop() }
}
