package memtable

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// memory executes statements about one job.
type memory struct {
	gen.DBTX
	row     Row
	nowUs   int64
	changed bool
}

func (m *memory) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	var r Row
	if r, m.changed = Statements[query].Change(m.row, args, m.nowUs); m.changed {
		m.row = r
	}
	return driver.RowsAffected(0), nil
}

// TestStatements sends random statements to servers, too, and compares the rows.
func TestStatements(t *testing.T) {
	testdb.OnDatabases(t, func(t *testing.T, db *testdb.DB) {
		ctx, q, name, random := t.Context(), gen.New(), []byte("job"), rand.New(rand.NewPCG(1, 2))
		db.Exec(t, "DELETE FROM lockstep_jobs")
		var m memory
		done := make(map[string]int)
		for range 1000 {
			r, keep, deleted := m.row, int32(1+random.IntN(3)), [3]int64{}
			tick := []int64{r.TickUs, r.TickUs, r.TickUs + 1, max(r.TickUs, 1) - 1, r.RunUs}[random.IntN(5)]
			token := max(r.Token, 1) + []uint64{0, 0, 1, 2}[random.IntN(4)] - uint64(random.IntN(2))
			text, run := []byte{'a' + byte(random.IntN(3))}, []byte{'a' + byte(random.IntN(26))}
			if i := random.IntN(6); i < 3 {
				deleted[i] = 1
			}
			verbs := []func(db gen.DBTX) (string, error){
				func(db gen.DBTX) (string, error) {
					return "MakeJob", q.MakeJob(ctx, db, gen.MakeJobParams{Name: name, FromUs: tick, NextUs: tick + 1, Schedule: text})
				},
				func(db gen.DBTX) (string, error) {
					return "PlanJob", testdb.Err(q.PlanJob(ctx, db, gen.PlanJobParams{NextUs: r.NextUs + 1, Schedule: text, Name: name, TickUs: tick}))
				},
				func(db gen.DBTX) (string, error) {
					return "NoteSchedule", testdb.Err(q.NoteSchedule(ctx, db, gen.NoteScheduleParams{Schedule: text, Name: name}))
				},
				func(db gen.DBTX) (string, error) {
					return "PauseJob", testdb.Err(q.PauseJob(ctx, db, gen.PauseJobParams{PausedBy: text, Name: name}))
				},
				func(db gen.DBTX) (string, error) { return "ResumeJob", testdb.Err(q.ResumeJob(ctx, db, name)) },
				func(db gen.DBTX) (string, error) { return "RequestJob", testdb.Err(q.RequestJob(ctx, db, name)) },
				func(db gen.DBTX) (string, error) {
					return "PurgeJob", testdb.Err(q.PurgeJob(ctx, db, gen.PurgeJobParams{
						Name: name, Token: r.Token, TickUs: r.TickUs + deleted[0], NextUs: r.NextUs + deleted[1], RunUs: r.RunUs + deleted[2],
					}))
				},
				func(db gen.DBTX) (string, error) {
					return "JobDone", testdb.Err(q.JobDone(ctx, db, gen.JobDoneParams{Run: run, Keep: keep, Name: name, AtUs: tick, Token: token}))
				},
				func(db gen.DBTX) (string, error) {
					return "JobFailed", testdb.Err(q.JobFailed(ctx, db, gen.JobFailedParams{Run: run, Keep: keep, Error: text, Name: name, AtUs: tick, Token: token}))
				},
				func(db gen.DBTX) (string, error) {
					return "BeginJob", testdb.Err(q.BeginJob(ctx, db, gen.BeginJobParams{
						Died: token - 1, Run: run, Keep: keep, AtUs: tick, Owner: text, NextUs: tick + 1, LimitUs: int64(keep), Schedule: text, Token: token, Name: name,
					}))
				},
			}
			send := verbs[min(random.IntN(len(verbs)+3), len(verbs)-1)]
			verb := testdb.Got(send(db.Admin()))(t)
			var want Row
			if rows := testdb.Got(q.ListJobs(ctx, db.Admin()))(t); len(rows) > 0 {
				want = rows[0]
				want.Runs, want.NowUs = string(testdb.Got(q.JobRuns(ctx, db.Admin(), name))(t).Runs), 0
			}
			m.nowUs = max(want.StartedUs, want.EndedUs, want.PausedUs, want.DiffersUs, want.RunUs) // the server's
			testdb.Must(t, testdb.Err(send(&m)))
			if got, want := fmt.Sprintf("%+v", m.row), fmt.Sprintf("%+v", want); got != want {
				t.Fatalf("%s at %d by %d made, of %+v, on the server\n%s, in memory\n%s", verb, tick, token, r, want, got)
			}
			if m.changed {
				done[verb]++
			}
		}
		testdb.ErrorIf(t, len(done) < len(Statements), "changed by %v", done)
	})
}
