package job

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/jobrow"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/txlock"
)

// ledger is where ticks are written down: the table, or its stand-in in tests.
type ledger interface {
	// look reads the row of a job, and the server's clock. Where there is no row, known
	// is false.
	look(ctx context.Context, key string) (r row, now time.Time, err error)
	// make makes the row, unless it is there. Nothing up to from is due.
	make(ctx context.Context, key string, from time.Time, p coming) error
	// plan writes what comes, unless a tick was begun since the row was read.
	plan(ctx context.Context, key string, r row, p coming) error
	// differs writes that the job is run by another schedule than that of the table.
	differs(ctx context.Context, key, schedule string) error
	// begin begins a tick, unless that is refused.
	begin(ctx context.Context, b beginning) (bool, error)
	// done and failed mark the tick that was begun so, unless a newer lease has begun one.
	done(ctx context.Context, b beginning, run jobrow.Run) (bool, error)
	failed(ctx context.Context, b beginning, run jobrow.Run, why string) (bool, error)
	// seal returns when what look has shown is on the disk.
	seal(ctx context.Context, key string) error
	// list reads all rows.
	list(ctx context.Context) ([]row, error)
}

// row is what the table has of a job.
type row struct {
	known bool
	gen.ListJobsRow
}

func (r row) tick() time.Time { return time.UnixMicro(r.TickUs) }

// open reports whether the tick that was begun last was not done.
func (r row) open() bool { return r.TickUs > r.DoneUs }

// hasFailed reports whether it has failed. Else it runs, or its process has died.
func (r row) hasFailed() bool { return r.open() && r.EndedUs != 0 }

// runs reports whether a tick was begun and has not ended: it runs, or its process has died.
func (r row) runs() bool { return r.open() && r.EndedUs == 0 }

// coming is what the row says about the ticks to come.
type coming struct {
	due      time.Time // the next, zero if it isn't known
	schedule string
	limit    time.Duration // of each
}

func (c coming) us() int64 {
	if c.due.IsZero() {
		return 0
	}
	return c.due.UnixMicro()
}

// beginning is a tick that is begun under a lease.
type beginning struct {
	key      string
	at       time.Time
	coming   coming
	instance string
	token    uint64
	died     jobrow.Run // the run under the token diedAs, 0 for none, which nobody has ended
	diedAs   uint64
	keep     int
}

// answerTime is how long a server may take for what is asked before a tick has begun.
const answerTime = 10 * time.Second

// patient is a ledger whose server may be silent: what is asked before a tick has begun ends with
// txlock.ErrWaitTimeout then.
type patient struct{ ledger }

func (p patient) look(ctx context.Context, key string) (r row, now time.Time, err error) {
	err = within(ctx, func(ctx context.Context) error {
		r, now, err = p.ledger.look(ctx, key)
		return err
	})
	return r, now, err
}

func (p patient) make(ctx context.Context, key string, from time.Time, c coming) error {
	return within(ctx, func(ctx context.Context) error { return p.ledger.make(ctx, key, from, c) })
}

func (p patient) plan(ctx context.Context, key string, r row, c coming) error {
	return within(ctx, func(ctx context.Context) error { return p.ledger.plan(ctx, key, r, c) })
}

func (p patient) differs(ctx context.Context, key, schedule string) error {
	return within(ctx, func(ctx context.Context) error { return p.ledger.differs(ctx, key, schedule) })
}

func (p patient) begin(ctx context.Context, b beginning) (begun bool, err error) {
	err = within(ctx, func(ctx context.Context) error {
		begun, err = p.ledger.begin(ctx, b)
		return err
	})
	return begun, err
}

// within asks the server something that it must answer within answerTime.
func within(ctx context.Context, ask func(ctx context.Context) error) error {
	limited, stop := context.WithTimeout(ctx, answerTime)
	defer stop()
	err := ask(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w for %v: %v", errUnanswered, answerTime, err) //nolint:errorlint // it must not look like the caller's
	}
	return err
}

// errUnanswered is the error of a server that was silent.
var errUnanswered = fmt.Errorf("%w: the server has not answered", txlock.ErrWaitTimeout)

// never is before every instant that can be ticked.
var never = time.UnixMicro(-1)

// sqlLedger is the table.
type sqlLedger struct {
	db   gen.DBTX
	safe atomic.Bool // the engine has SafeReads
}

var queries = gen.New()

func (s *sqlLedger) text() gen.DBTX { return inline(s.db) }

// inline sends statements with their arguments in the text: one round trip, where nothing
// has to be prepared.
func inline(db gen.DBTX) gen.DBTX { return &rawsql.Text{DBTX: db, Inline: true} }

func (s *sqlLedger) look(ctx context.Context, key string) (row, time.Time, error) {
	r, err := queries.LookJob(ctx, s.text(), []byte(key))
	missing := errors.Is(err, sql.ErrNoRows)
	if err = fault.Read("LookJob", err); err == nil {
		err = session.Fit(r.Words)
	}
	if missing || errors.Is(err, session.ErrEngine) { // the words don't say which engine it is
		var facts session.Facts
		if facts, err = session.AskAll(ctx, s.text()); err == nil {
			s.safe.Store(rawsql.EngineOf(facts.Version).SafeReads)
			err = errors.Join(facts.Unfit, session.Fit(strings.TrimPrefix(r.Words, rawsql.OtherEngine+" ")))
		}
		if missing && err == nil {
			return row{ListJobsRow: gen.ListJobsRow{NowUs: facts.ClockUs}}, time.UnixMicro(facts.ClockUs), nil
		}
	}
	if err == nil && (r.DoneUs > r.TickUs || r.NowUs <= 0 || r.StartedUs < 0 || r.EndedUs < 0) {
		err = fault.UnknownReply("LookJob", fmt.Sprintf("the row (tick %d, done %d, started %d, ended %d, now %d)", r.TickUs, r.DoneUs, r.StartedUs, r.EndedUs, r.NowUs))
	}
	if err == nil {
		return row{true, gen.ListJobsRow{
			Name: []byte(key), TickUs: r.TickUs, DoneUs: r.DoneUs, Token: r.Token, Owner: r.Owner, StartedUs: r.StartedUs,
			EndedUs: r.EndedUs, TookUs: r.TookUs, Failures: r.Failures, Error: r.Error, NextUs: r.NextUs, LimitUs: r.LimitUs,
			Schedule: r.Schedule, PausedUs: r.PausedUs, PausedBy: r.PausedBy, RunUs: r.RunUs, NowUs: r.NowUs,
		}}, time.UnixMicro(r.NowUs), nil
	}
	return row{}, time.Time{}, fault.Explain(fmt.Sprintf("read job %q", key), err)
}

func (s *sqlLedger) make(ctx context.Context, key string, from time.Time, p coming) error {
	err := queries.MakeJob(ctx, s.text(), gen.MakeJobParams{Name: []byte(key), FromUs: from.UnixMicro(), NextUs: p.us(), Schedule: []byte(p.schedule)})
	return fault.Explain(fmt.Sprintf("make job %q", key), err)
}

func (s *sqlLedger) plan(ctx context.Context, key string, r row, p coming) error {
	_, err := queries.PlanJob(ctx, s.text(), gen.PlanJobParams{NextUs: p.us(), Schedule: []byte(p.schedule), Name: []byte(key), TickUs: r.TickUs})
	return fault.Explain(fmt.Sprintf("plan job %q", key), err)
}

func (s *sqlLedger) differs(ctx context.Context, key, schedule string) error {
	_, err := queries.NoteSchedule(ctx, s.text(), gen.NoteScheduleParams{Schedule: []byte(schedule), Name: []byte(key)})
	return fault.Explain(fmt.Sprintf("note the schedule of job %q", key), err)
}

func (s *sqlLedger) begin(ctx context.Context, b beginning) (bool, error) {
	begun, err := fault.Changed("BeginJob")(queries.BeginJob(ctx, s.text(), gen.BeginJobParams{
		Died: b.diedAs, Run: b.died.Line(), Keep: int32(b.keep), Name: []byte(b.key), AtUs: b.at.UnixMicro(), Owner: []byte(b.instance), Token: b.token,
		NextUs: b.coming.us(), LimitUs: b.coming.limit.Microseconds(), Schedule: []byte(b.coming.schedule),
	}))
	return begun, fault.Explain(fmt.Sprintf("begin job %q", b.key), err)
}

func (s *sqlLedger) done(ctx context.Context, b beginning, run jobrow.Run) (bool, error) {
	return doneIn(ctx, s.db, b, run)
}

// doneIn marks a tick as done in a transaction of the caller.
func doneIn(ctx context.Context, tx gen.DBTX, b beginning, run jobrow.Run) (bool, error) {
	marked, err := fault.Changed("JobDone")(queries.JobDone(ctx, inline(tx), gen.JobDoneParams{
		Run: run.Line(), Keep: int32(b.keep), Name: []byte(b.key), AtUs: b.at.UnixMicro(), Token: b.token,
	}))
	return marked, fault.Explain(fmt.Sprintf("mark job %q", b.key), err)
}

func (s *sqlLedger) failed(ctx context.Context, b beginning, run jobrow.Run, why string) (bool, error) {
	marked, err := fault.Changed("JobFailed")(queries.JobFailed(ctx, s.text(), gen.JobFailedParams{
		Run: run.Line(), Keep: int32(b.keep), Name: []byte(b.key), AtUs: b.at.UnixMicro(), Token: b.token, Error: []byte(clipped(why)),
	}))
	return marked, fault.Explain(fmt.Sprintf("mark job %q", b.key), err)
}

// seal writes something on a server without a binary log, which shows others what a
// transaction has written before its COMMIT is on the disk.
func (s *sqlLedger) seal(ctx context.Context, key string) error {
	if s.safe.Load() {
		return nil
	}
	return fault.Explain(fmt.Sprintf("seal job %q", key), queries.SealOnce(ctx, s.text()))
}

func (s *sqlLedger) list(ctx context.Context) ([]row, error) {
	found, err := queries.ListJobs(ctx, rawsql.Scanning(s.text()))
	if err != nil {
		return nil, fault.Explain("list jobs", err)
	}
	rows := make([]row, len(found))
	for i, r := range found {
		rows[i] = row{true, r}
	}
	return rows, nil
}

// maxError is the length of the column.
const maxError = 1024

// clipped is the text of an error as the column holds it.
func clipped(text string) string {
	if text == "" {
		return "(an error without a text)"
	}
	return clippedTo(maxError, text)
}

func clippedTo(n int, text string) string { return text[:min(len(text), n)] }
