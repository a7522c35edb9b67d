package tests

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

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
