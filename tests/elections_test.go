package tests

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

// elected is an election of processes, each with a way of its own to the server.
type elected struct {
	t       *testing.T
	db      *testdb.DB
	key     string
	table   string
	blind   bool
	said    chan said
	reading sync.WaitGroup
	drained chan struct{} // closed when nobody says anything any more

	members []*member

	mu    sync.Mutex
	all   []said
	news  chan struct{} // closed when there is more
	terms []said        // the first of each
}

// member is one of the processes.
type member struct {
	*testdb.Child
	name    string
	in      io.WriteCloser
	network network
}

// newElection starts so many processes. They go to the servers of the database by turns.
func newElection(t *testing.T, members int, blind bool, db *testdb.DB, others ...*testdb.DB) *elected {
	t.Helper()
	servers := append([]*testdb.DB{db}, others...)
	e := &elected{t: t, db: db, blind: blind, key: "elected:" + rand.Text(), said: make(chan said), drained: make(chan struct{}), news: make(chan struct{})}
	e.table = db.CreateTable(t, "written", "id BIGINT PRIMARY KEY AUTO_INCREMENT, token BIGINT UNSIGNED")
	go func() {
		defer close(e.drained)
		for s := range e.said {
			e.note(s)
		}
	}()
	for i := range members {
		m := &member{network: newNetwork(t, servers[i%len(servers)])}
		e.members = append(e.members, m)
		e.start(m, fmt.Sprintf("%d.", i))
	}
	return e
}

func (e *elected) note(s said) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, s)
	if s.What == "leads" {
		e.terms = append(e.terms, s)
	}
	close(e.news)
	e.news = make(chan struct{})
}

// start starts the process of a member.
func (e *elected) start(m *member, name string) {
	e.t.Helper()
	cfg := e.db.Config()
	cfg.Addr = m.network.Addr()
	in, stdin, err := os.Pipe()
	fatal(e.t, err)
	stdout, out, err := os.Pipe()
	fatal(e.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), candidateDSN+"="+cfg.FormatDSN(), candidateName+"="+name, candidateKey+"="+e.key, candidateTable+"="+e.table)
	if e.blind {
		cmd.Env = append(cmd.Env, candidateBlind+"=1")
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, os.Stderr
	m.name, m.in = name, stdin
	m.Child, err = testdb.StartChild(cmd)
	fatal(e.t, errors.Join(err, in.Close(), out.Close()))
	e.reading.Go(func() {
		listen(name, stdout, e.said)
		_ = stdout.Close()
	})
}

// await waits until something was said, and returns the last of it.
func (e *elected) await(what func(s said) bool) said {
	e.t.Helper()
	limit := time.After(5 * time.Minute)
	for known := 0; ; {
		e.mu.Lock()
		all, news := e.all, e.news
		e.mu.Unlock()
		for _, s := range slices.Backward(all[known:]) {
			if what(s) {
				return s
			}
		}
		known = len(all)
		select {
		case <-news:
		case <-limit:
			e.t.Fatal("it was not said within five minutes")
		}
	}
}

// leader waits for a term with a token above the given one.
func (e *elected) leader(above uint64) (*member, said) {
	e.t.Helper()
	index := func(s said) int {
		return slices.IndexFunc(e.members, func(m *member) bool { return m.name == s.by })
	}
	s := e.await(func(s said) bool { return s.What == "leads" && s.Token > above && index(s) >= 0 })
	return e.members[index(s)], s
}

// end ends the processes, and returns all that they have said.
func (e *elected) end() []said {
	e.t.Helper()
	for _, m := range e.members {
		_ = m.in.Close()
	}
	for _, m := range e.members {
		time.AfterFunc(20*time.Second, m.Kill)
		m.Wait()
	}
	e.reading.Wait()
	close(e.said)
	<-e.drained
	return e.all
}

// The causes of a change of leaders.
const (
	byResign = "resign"
	byKill   = "kill"
	byStop   = "stop"
	byCut    = "cut"
)

// change makes somebody else lead, and returns how to undo what it has done to the leader.
func (e *elected) change(cause string, m *member) (undo func()) {
	switch cause {
	case byResign:
		_, err := fmt.Fprintln(m.in)
		fatal(e.t, err)
	case byKill:
		m.Kill()
		return func() {
			_ = m.in.Close()
			e.start(m, m.name+"'")
		}
	case byStop:
		fatal(e.t, m.Signal(syscall.SIGSTOP))
		return func() { fatal(e.t, m.Signal(syscall.SIGCONT)) }
	case byCut:
		fatal(e.t, m.network.Hang())
		return func() { fatal(e.t, m.network.Mend()) }
	}
	return func() {}
}

// twoLead reports whether anybody still believed in an earlier term after somebody had
// believed in a later one.
func twoLead(t *testing.T, all []said) bool {
	t.Helper()
	begun := slices.DeleteFunc(slices.Clone(all), func(s said) bool { return s.What != "believes" })
	ended := slices.Clone(begun)
	slices.SortFunc(begun, func(a, b said) int { return cmp.Compare(a.From, b.From) })
	slices.SortFunc(ended, func(a, b said) int { return cmp.Compare(a.To, b.To) })
	t.Logf("%d beliefs", len(begun))
	var latest uint64 // of the beliefs that had ended before
	for _, s := range begun {
		for len(ended) > 0 && ended[0].To < s.From {
			latest, ended = max(latest, ended[0].Token), ended[1:]
		}
		if s.Token < latest {
			return true
		}
	}
	return false
}

// TestElections proves on ten processes, whose leader resigns, is killed, stopped and cut off in turn, that no two believe at
// once that they lead, that tokens rise, and that a leader writes nothing after its successor; it logs the hand-overs.
func TestElections(t *testing.T) {
	lasts := testdb.Long(8*time.Second, time.Minute)
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		e := newElection(t, 10, false, testdb.Open(t, engine))
		took := make(map[string][]time.Duration)
		var late []time.Duration // how long after a resignation, without what the machine has delayed
		delays := testdb.Delays(t)
		leader, term := e.leader(0)
		causes := []string{byResign, byKill, byResign, byStop, byResign, byCut}
		for i, end := 0, time.Now().Add(lasts); len(took) < 4 || time.Now().Before(end); i++ {
			cause := causes[i%len(causes)]
			e.await(func(s said) bool {
				return s.What == "wrote" && s.Token == term.Token || s.What == "leads" && s.Token > term.Token
			})
			time.Sleep(mathrand.N(100 * time.Millisecond)) // in the middle of whatever it does
			at, before := moment(), delays()
			undo := e.change(cause, leader)
			next, following := e.leader(term.Token)
			if following.From > at { // else it had lost the lead already
				took[cause] = append(took[cause], time.Duration(following.From-at))
				if cause == byResign {
					late = append(late, time.Duration(following.From-at)-(delays()-before))
				}
			}
			undo()
			leader, term = next, following
		}
		all := e.end()
		testdb.ErrorIf(t, twoLead(t, all), "two believe at once that they lead")
		for cause, all := range took {
			t.Logf("%s: %d hand-overs, after %v in the middle, from %v to %v, with a TTL of %v", cause, len(all), median(all), slices.Min(all), slices.Max(all), candidateTTL)
		}
		e.checkTerms(all)
		e.checkRows()
		least := slices.Min(late)
		testdb.ErrorIf(t, least > candidateTTL, "a leader that resigns is followed after %v at least", least)
	})
}

// checkTerms checks that each term has a token of its own, and tells how many functions
// worked beside their successors.
func (e *elected) checkTerms(all []said) {
	e.t.Helper()
	leads, beside, overdue := make(map[uint64]said), 0, 0
	for _, s := range e.terms {
		if other, twice := leads[s.Token]; twice {
			e.t.Errorf("%s and %s lead with the token %d", other.by, s.by, s.Token)
		}
		leads[s.Token] = s
	}
	for _, s := range all {
		switch s.What {
		case "overdue":
			overdue++
		case "stopped":
			if slices.ContainsFunc(e.terms, func(later said) bool { return later.Token > s.Token && later.From < s.From }) {
				beside++
			}
		}
	}
	e.t.Logf("%d terms; %d functions ended after their successors had begun, %d were told to be overdue", len(leads), beside, overdue)
}

// checkRows checks that what leaders have written is in the order of their terms.
func (e *elected) checkRows() {
	e.t.Helper()
	var rows, wrong int
	err := e.db.Admin().QueryRowContext(e.t.Context(), "SELECT COUNT(*), COALESCE(SUM(before_it > token), 0) FROM (SELECT token, MAX(token) OVER (ORDER BY id) AS before_it FROM "+e.table+") t").Scan(&rows, &wrong)
	fatal(e.t, err)
	e.t.Logf("%d rows were written", rows)
	if rows == 0 || wrong > 0 {
		e.t.Errorf("%d of %d rows were written after those of a later leader", wrong, rows)
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// TestElectionsFindsTwo proves that the check finds what it is for: a leader that is
// stopped, and goes on to believe that it leads.
func TestElectionsFindsTwo(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		e := newElection(t, 3, true, testdb.Open(t, engine))
		leader, term := e.leader(0)
		undo := e.change(byStop, leader)
		next := e.await(func(s said) bool { return s.What == "believes" && s.Token > term.Token })
		undo()
		e.await(func(s said) bool { return s.What == "believes" && s.Token == term.Token && s.From > next.To })
		testdb.ErrorIf(t, !twoLead(t, e.end()), "two that lead at once were not found")
	})
}

// The environment of a process that stands for election.
const (
	candidateDSN   = "LOCKSTEP_TEST_CANDIDATE_DSN"
	candidateName  = "LOCKSTEP_TEST_CANDIDATE_NAME"
	candidateKey   = "LOCKSTEP_TEST_CANDIDATE_KEY"
	candidateTable = "LOCKSTEP_TEST_CANDIDATE_TABLE"
	// candidateBlind makes it believe for longer than it may: a bug that must be noticed.
	candidateBlind = "LOCKSTEP_TEST_CANDIDATE_BLIND"
)

const candidateTTL = 1500 * time.Millisecond

// init makes this test binary that process.
func init() {
	if dsn := os.Getenv(candidateDSN); dsn != "" {
		if err := stand(dsn); err != nil {
			fmt.Fprintln(os.Stderr, os.Getenv(candidateName), err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// said is a line of a candidate. Moments are nanoseconds of a clock that all processes of
// the machine share.
type said struct {
	What  string // leads, believes, wrote, stopped or overdue
	Token uint64
	From  int64 // of believes: when Err was called, and when it had said nil
	To    int64

	by string // added by who reads it
}

// moment reads that clock.
func moment() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// candidate is such a process.
type candidate struct {
	pool  *sql.DB
	table string
	blind bool
	ended chan struct{} // closed when the input has ended

	mu  sync.Mutex
	out *json.Encoder
}

func (c *candidate) say(s said) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(s) // nobody reads any more
}

// stand stands for election, and resigns when it is told to, until its input ends.
func stand(dsn string) (err error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	cfg.Logger = &mysql.NopLogger{} // connections are cut
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	c := &candidate{table: os.Getenv(candidateTable), blind: os.Getenv(candidateBlind) != "", ended: make(chan struct{}), out: json.NewEncoder(os.Stdout)}
	c.pool = sql.OpenDB(locksqlc.Connector(connector))
	leases, err := lease.NewManager(c.pool)
	if err != nil {
		return err
	}
	election, err := elect.New(leases, txlock.Named(os.Getenv(candidateKey)), elect.InstanceName(os.Getenv(candidateName)), elect.TTL(candidateTTL),
		elect.Observe(func(_ context.Context, e elect.Event) {
			if e.Kind == elect.Overdue {
				c.say(said{What: "overdue", Token: e.Token, From: moment()})
			}
		}))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			_ = election.Resign(ctx) // it may not lead any more
		}
		close(c.ended)
		cancel()
	}()
	if err := election.Run(ctx, c.lead); !errors.Is(err, context.Canceled) {
		return err
	}
	closing, end := context.WithTimeout(context.Background(), 2*time.Second)
	defer end()
	_ = leases.Close(closing) // the network may be down
	return c.pool.Close()
}

// lead says again and again whether it believes to lead, and writes, until it must stop.
func (c *candidate) lead(ctx context.Context, term *elect.Term) error {
	c.say(said{What: "leads", Token: term.Token(), From: moment()})
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() {
		for ctx.Err() == nil {
			if c.write(ctx, term) == nil {
				c.say(said{What: "wrote", Token: term.Token(), From: moment()})
			}
		}
	})
	over := ctx.Done()
	if c.blind {
		over = c.ended
	}
	for {
		from, err := moment(), term.Err()
		if err == nil || c.blind {
			c.say(said{What: "believes", Token: term.Token(), From: from, To: moment()})
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-over:
			c.say(said{What: "stopped", Token: term.Token(), From: moment()})
			return nil
		}
	}
}

// write writes a row that may be there only while it leads.
func (c *candidate) write(ctx context.Context, term *elect.Term) error {
	err := locksqlc.Run(ctx, c.pool, nil, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+c.table+" (token) VALUES (?)", term.Token()); err != nil {
			return err
		}
		return term.Guard(ctx, tx)
	})
	select {
	case <-time.After(20 * time.Millisecond):
	case <-ctx.Done():
	}
	return err
}

// listen hands on what a candidate says, until it has ended.
func listen(by string, out io.Reader, to chan<- said) {
	for lines := json.NewDecoder(out); ; {
		var s said
		if err := lines.Decode(&s); err != nil {
			return
		}
		s.by = by
		to <- s
	}
}
