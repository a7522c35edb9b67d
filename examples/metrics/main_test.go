package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// onServers runs a test on every server.
func onServers(t *testing.T, test func(t *testing.T, dsn string)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) { test(t, testdb.Shared(t, engine).Config().FormatDSN()) })
}

// TestMetrics asks the service, lets go wrong what can, and scrapes it: all that is emitted
// is as it should be, and all that the dashboard and the alerts ask for is emitted.
func TestMetrics(t *testing.T) {
	onServers(t, func(t *testing.T, dsn string) {
		database := testdb.Got(scratch.New(t.Context(), dsn, ddl))(t)
		t.Cleanup(func() { check(t, database.Drop()) })
		s := testdb.Got(newService(database.DSN(), slog.New(slog.DiscardHandler), 6*time.Second))(t)
		t.Cleanup(func() { check(t, s.Close(context.Background())) })
		server := httptest.NewServer(s)
		t.Cleanup(server.Close)
		exercise(t, s, server.URL)
		emitted := scrape(t, server.URL)
		for line, want := range map[string]string{
			`lockstep_acquire_duration_seconds_count{db_namespace="shop",lockstep_family="order",lockstep_kind="lock",lockstep_outcome="granted",lockstep_shared="false"}`:   "2",
			`lockstep_acquire_duration_seconds_count{db_namespace="shop",lockstep_family="payment",lockstep_kind="once",lockstep_outcome="granted",lockstep_shared="false"}`: "1",
			`lockstep_once_repeats_total{db_namespace="shop",lockstep_family="payment",lockstep_kind="once",lockstep_shared="false"}`:                                        "1",
			`lockstep_held{db_namespace="shop",lockstep_family="order",lockstep_kind="lock"}`:                                                                                "0",
			`lockstep_waiting{db_namespace="shop",lockstep_family="order",lockstep_kind="lock"}`:                                                                             "0",
			`lockstep_held{db_namespace="shop",lockstep_family="report",lockstep_kind="lease"}`:                                                                              "0",
			`lockstep_leading{db_namespace="shop",lockstep_election="mailer"}`:                                                                                               "1",
			`lockstep_losses_total{db_namespace="shop",lockstep_family="lost",lockstep_kind="lease",lockstep_shared="false"}`:                                                "1",
			`lockstep_drops_total{db_namespace="shop",lockstep_family="dropped",lockstep_kind="lease",lockstep_shared="false"}`:                                              "1",
			`lockstep_deadlocks_total{db_namespace="shop",lockstep_family="knot"}`:                                                                                           "1",
			`lockstep_doomed_total{db_namespace="shop",error_type="deadlock",lockstep_family="knot"}`:                                                                        "1",
			`lockstep_retries_total{db_namespace="shop",error_type="deadlock",lockstep_family="knot"}`:                                                                       "1",
			`lockstep_stale_snapshots_total{db_namespace="shop",lockstep_family="stale",lockstep_kind="lock",lockstep_shared="false"}`:                                       "1",
			`lockstep_ticks_total{db_namespace="shop",lockstep_job="failing",lockstep_outcome="failed"}`:                                                                     "1",
			`lockstep_job_overdue_seconds{db_namespace="shop",lockstep_job="clean-up"}`:                                                                                      "0",
			`lockstep_job_too_long_seconds{db_namespace="shop",lockstep_job="clean-up"}`:                                                                                     "0",
			`lockstep_job_failing{db_namespace="shop",lockstep_job="failing"}`:                                                                                               "1",
			`lockstep_waiting_oldest_seconds{db_namespace="shop",lockstep_family="order",lockstep_kind="lock"}`:                                                              "0",
		} {
			testdb.Equal(t, line, emitted[line], want)
		}
		if t.Failed() {
			for line, value := range emitted {
				if !strings.Contains(line, "_bucket") {
					t.Log(line, value)
				}
			}
		}
		checkQueries(t, emitted)
	})
}

// scrape returns the samples of a scrape, by name and labels.
func scrape(t *testing.T, url string) map[string]string {
	t.Helper()
	samples := make(map[string]string)
	response, err := http.Get(url + "/metrics")
	testdb.Must(t, err)
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			i := strings.LastIndex(line, " ")
			samples[line[:i]] = line[i+1:]
		}
	}
	testdb.FatalIf(t, lines.Err() != nil || len(samples) == 0, "%d samples, %v", len(samples), lines.Err())
	return samples
}

// await waits until a scrape has a sample that matches.
func await(t *testing.T, url, pattern string) {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		runtime.GC() // which finds the handle that was dropped
		for line, value := range scrape(t, url) {
			if wanted.MatchString(line + " " + value) {
				return
			}
		}
	}
	t.Fatalf("no sample matches %s", pattern)
}

// exercise makes every metric have a value.
func exercise(t *testing.T, s *service, url string) {
	t.Helper()
	ctx := t.Context()
	post := func(path string) {
		t.Helper()
		response, err := http.Post(url+path, "", nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = response.Body.Close() }()
		said, _ := io.ReadAll(response.Body)
		testdb.ErrorIf(t, response.StatusCode != http.StatusOK, "%s: %s %s", path, response.Status, said)
	}
	post("/orders/42")
	post("/orders/42")
	var asked sync.WaitGroup
	for range 3 { // one of whom waits at least
		asked.Go(func() { post("/reports/sales") })
	}
	asked.Wait()

	lost := testdb.Got(s.leases.Acquire(ctx, txlock.Named("lost")))(t)
	check(t, s.leases.ForceRelease(ctx, lost.Key()))
	wants(t, "Renew", lost.Renew(ctx), txlock.ErrLost)
	_ = lost.Release(ctx)

	testdb.Got(s.leases.Acquire(ctx, txlock.Named("dropped")))(t) // and forgotten
	deadlock(t, s.db)
	stale(t, s.db)
	_, err := s.jobs.Tick(ctx, txlock.Named("failing"), time.Now().Add(-time.Minute), func(context.Context, time.Time) error {
		return errors.New("it fails")
	})
	testdb.Fails(t, "the tick", err)
	for _, pattern := range []string{
		`^lockstep_leading.* 1$`, `^lockstep_ticks_total.*outcome="` + string(job.Done), `^lockstep_renewal_left_seconds_count`,
		`^lockstep_drops_total.*family="dropped"`,
	} {
		await(t, url, pattern)
	}
}

// knots are the keys of a deadlock.
var knots = txlock.NewFamily[int]("knot")

// deadlock has two transactions take two keys in two orders. One of them is run again.
func deadlock(t *testing.T, db *sql.DB) {
	t.Helper()
	check(t, txlock.Ensure(t.Context(), db, knots.Keys(1, 2)...))
	var both, first sync.WaitGroup
	first.Add(2)
	for i := range 2 {
		both.Go(func() {
			var once sync.Once
			err := locksqlc.Run(t.Context(), db, knots.Keys(i+1), func(tx *sql.Tx) error {
				once.Do(func() {
					first.Done()
					first.Wait()
				})
				locks, err := locksqlc.Join(t.Context(), tx)
				if err == nil {
					_, err = locks.Lock(t.Context(), knots.Key(2-i))
				}
				return err
			})
			wants(t, "Run", err, nil)
		})
	}
	both.Wait()
}

// stale locks a key that somebody has locked since the transaction has read.
func stale(t *testing.T, db *sql.DB) {
	t.Helper()
	key := txlock.Named("stale")
	check(t, txlock.Ensure(t.Context(), db, key))
	tx := testdb.Got(db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead}))(t)
	defer func() { _ = tx.Rollback() }()
	var n int
	check(t, tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM orders").Scan(&n))
	check(t, locksqlc.Run(t.Context(), db, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
	locks := testdb.Got(locksqlc.Join(t.Context(), tx))(t)
	_, err := locks.Lock(t.Context(), key)
	wants(t, "Lock", err, txlock.ErrStaleSnapshot)
}

// TestExample runs the program until its customers have bought something.
func TestExample(t *testing.T) {
	onServers(t, func(t *testing.T, dsn string) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		reader, writer := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, dsn, "127.0.0.1:0", writer)
			_ = writer.Close()
		}()
		lines := bufio.NewScanner(reader)
		for lines.Scan() {
			url, found := strings.CutPrefix(lines.Text(), "the metrics are at ")
			if !found {
				continue
			}
			go func() { _, _ = io.Copy(io.Discard, reader) }()
			await(t, strings.TrimSuffix(url, "/metrics"), `^lockstep_hold_duration_seconds_count.*family="order".* [1-9]`)
			stop()
			break
		}
		check(t, <-ended)
	})
	testdb.Fails(t, "run without a server", run(t.Context(), "", "", io.Discard))
	testdb.Fails(t, "run without a server that answers", run(t.Context(), "nobody@tcp(127.0.0.1:1)/", "", io.Discard))
}

var check, wants = testdb.Must, testdb.Wants

// grafana is where the dashboard and the alerts are.
const grafana = "../../contrib/grafana/"

// queriesOf returns the queries of the dashboard.
func queriesOf(t *testing.T) (queries []string) {
	t.Helper()
	text := testdb.Got(os.ReadFile(grafana + "dashboard.json"))(t)
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Query any }
		}
	}
	check(t, json.Unmarshal(text, &dashboard))
	for _, panel := range dashboard.Panels {
		testdb.ErrorIf(t, panel.Type != "row" && len(panel.Targets) == 0, "the panel %q asks for nothing", panel.Title)
		for _, target := range panel.Targets {
			queries = append(queries, target.Expr)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if query, ok := variable.Query.(map[string]any); ok {
			queries = append(queries, query["query"].(string))
		}
	}
	return queries
}

var (
	aName    = regexp.MustCompile(`\b(lockstep|error)_\w+`)
	aMatcher = regexp.MustCompile(`(\w+)=~?"([^"$]+)"`)
)

// checkQueries compares the dashboard and the alerts with a scrape that has everything: each name in them is a
// metric or a label that is emitted, each label they choose by has the value, and each metric is on the dashboard.
func checkQueries(t *testing.T, emitted map[string]string) {
	t.Helper()
	known, metrics := make(map[string]bool), make(map[string]bool)
	for line := range emitted {
		name, labels, _ := strings.Cut(line, "{")
		known[name] = true
		if strings.HasPrefix(name, "lockstep_") {
			metrics[strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")] = true
		}
		for _, pair := range aMatcher.FindAllStringSubmatch(labels, -1) {
			known[pair[1]], known[pair[1]+"="+pair[2]] = true, true
		}
	}
	queries := queriesOf(t)
	for metric := range metrics {
		testdb.ErrorIf(t, !slices.ContainsFunc(queries, func(query string) bool { return strings.Contains(query, metric) }), "the dashboard doesn't show %s", metric)
	}
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml"} {
		text := testdb.Got(os.ReadFile(grafana + file))(t)
		queries = append(queries, string(text))
	}
	for _, query := range queries {
		for _, name := range aName.FindAllString(query, -1) {
			testdb.ErrorIf(t, !known[name], "nothing emits %s, for which this asks: %s", name, query)
		}
	}
	// What alerts_test.yaml has records of is invented, but what the others choose is not.
	for _, query := range queries[:len(queries)-1] {
		for _, pair := range aMatcher.FindAllStringSubmatch(query, -1) {
			testdb.ErrorIf(t, !known[pair[1]+"="+pair[2]], "nothing emits %s, for which this asks: %s", pair[0], query)
		}
	}
	testdb.ErrorIf(t, len(queries) < 20 || len(metrics) < 16, "%d queries and %d metrics", len(queries), len(metrics))
}
