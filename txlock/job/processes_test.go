package job

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// process is a child of TestProcesses.
type process struct {
	*testdb.Child
	stop io.Closer
	said chan []string
}

// startProcess starts this program as a process that runs jobs.
func startProcess(t *testing.T, db *testdb.DB, name, table string, off time.Duration) *process {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	in, stop, err := os.Pipe()
	must(t, err)
	out, say, err := os.Pipe()
	must(t, err)
	cmd := exec.Command(program)
	cmd.Env = environment(db.DSN(), name, table, off)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, say, say
	c, err := testdb.StartChild(cmd)
	must(t, err)
	must(t, errors.Join(in.Close(), say.Close()))
	p := &process{Child: c, stop: stop, said: make(chan []string, 1)}
	go func() {
		var lines []string
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			lines = append(lines, scanner.Text())
		}
		_ = out.Close()
		p.said <- lines
	}()
	return p
}

// end ends a process, and returns what it has said.
func (p *process) end(t *testing.T, kill bool) []string {
	t.Helper()
	if kill {
		p.Kill()
	}
	must(t, p.stop.Close())
	if state := p.Wait(); !kill && !state.Success() {
		t.Errorf("a process has ended with %v", state)
	}
	return <-p.said
}

// TestProcesses proves, on five processes with clocks from an hour behind to an hour ahead
// that are killed at random, that jobs of a millisecond lose none of 300 ticks of 100 ms
// with LOCKSTEP_LONG=1, else of 80, that TickTx does each exactly once, and Tick at least once and never beside itself.
//
// The machine's clock can't be moved for a process alone: what is wrong is what the package
// reads of it, which is the stopwatch, and nothing else, as TestMachineClock proves.
func TestProcesses(t *testing.T) {
	ticks, between := 80, 1250*time.Millisecond // kills
	if os.Getenv("LOCKSTEP_LONG") != "" {
		ticks, between = 300, 2500*time.Millisecond
	}
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "ticks", "id BIGINT PRIMARY KEY AUTO_INCREMENT, job VARCHAR(10), at_us BIGINT, who VARCHAR(40)")
		offsets := []time.Duration{-time.Hour, -100 * time.Millisecond, 0, 30 * time.Minute, time.Hour}
		processes := make([]*process, len(offsets))
		var said []string
		start := func(i, generation int) {
			processes[i] = startProcess(t, db, fmt.Sprintf("%d%s:%d", i, strings.Repeat("x", i), generation), table, offsets[i])
		}
		for i := range processes {
			start(i, 0)
		}
		enough := func() bool {
			return count(t, db, "SELECT LEAST(COUNT(DISTINCT IF(job = 'tx', at_us, NULL)), COUNT(DISTINCT IF(job = 'plain', at_us, NULL))) FROM "+table) >= ticks
		}
		kills := 0
		for end := time.Now().Add(3 * time.Minute); !enough() || kills < 4; kills++ {
			if time.Now().After(end) {
				t.Fatalf("%d ticks, of which %d were to be done", count(t, db, "SELECT COUNT(*) FROM "+table), ticks)
			}
			time.Sleep(between)
			n, err := rand.Int(rand.Reader, big.NewInt(int64(len(processes))))
			must(t, err)
			i := int(n.Int64())
			said = append(said, processes[i].end(t, true)...)
			start(i, kills+1)
		}
		for _, p := range processes {
			said = append(said, p.end(t, false)...)
		}
		for _, line := range said {
			if strings.HasPrefix(line, "beside") {
				t.Errorf("two worked at once: %s", line)
			}
		}
		summary := func(job string) (rows, ticks, span int) {
			must(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*), COUNT(DISTINCT at_us), COALESCE((MAX(at_us) - MIN(at_us)) DIV 100000 + 1, 0) FROM "+table+" WHERE job = ?", job).Scan(&rows, &ticks, &span))
			return rows, ticks, span
		}
		for _, job := range []string{"tx", "plain"} {
			rows, done, span := summary(job)
			t.Logf("%s: %d ticks in %d rows, %d instants, %d kills, %d lines of the processes", job, done, rows, span, kills, len(said))
			if done != span {
				t.Errorf("%s: %d of %d ticks were lost", job, span-done, span)
			}
			if job == "tx" && rows != done {
				t.Errorf("%d ticks were done twice", rows-done)
			}
			if rows > done+kills+len(said) {
				t.Errorf("%s: %d rows of %d ticks", job, rows, done)
			}
		}
		if t.Failed() {
			t.Log(strings.Join(said, "\n"))
		}
	})
}
