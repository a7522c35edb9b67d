package main

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/faults"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// clientVariable is the environment variable that makes this program a client.
const clientVariable = "LOCKSTEP_CHAOS_CLIENT"

// clientConfig is what a client is told.
type clientConfig struct {
	Name     string // of this life of it
	Engine   testdb.Engine
	DSN      string
	Nodes    []string // the DSNs of the databases of majorities
	Pressed  bool     // its garbage is collected all the time
	History  string   // the path of its journal
	Seed     uint64
	Workers  int
	TTL      time.Duration
	Without  string
	Wrappers []string // to choose from
	Apart    int64    // by how much its monotonic clock is set apart, in nanoseconds
}

const (
	// opLimit bounds an operation.
	opLimit = 4 * time.Second
	// poolSize is the number of connections of a client, which are less than it could
	// use at times.
	poolSize = 6
)

// client is a process that uses the library.
type client struct {
	clientConfig
	clock
	journal journal
	pool    *sql.DB
	plain   *sql.DB  // the same without the guards of the pool
	gorm    *gorm.DB // over the pool
	leases  *lease.Manager
	most    *majority
	jobs    *job.Jobs
	guarded bool
	multi   bool // a text may have several statements
	stop    chan struct{}

	mu       sync.Mutex
	leftOver []*several
}

// runClient works until its standard input ends.
func runClient(text string) (err error) {
	c := client{stop: make(chan struct{})}
	if err := json.Unmarshal([]byte(text), &c.clientConfig); err != nil {
		return err
	}
	c.clock = clock{c.Apart}
	if c.journal, err = openJournal(c.History); err != nil {
		return err
	}
	choice := rand.New(rand.NewPCG(c.Seed, 0))
	if err := c.open(choice); err != nil {
		return err
	}
	if c.Pressed {
		go c.litter()
	}
	var working sync.WaitGroup
	for i := range c.Workers {
		w := &worker{client: &c, name: fmt.Sprintf("%s-w%d", c.Name, i), Rand: rand.New(rand.NewPCG(c.Seed, uint64(i+1)))}
		working.Go(w.work)
	}
	err = c.obey(os.Stdin)
	close(c.stop)
	working.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	_ = c.jobs.Close(ctx) // as the workers have ended
	_ = c.most.close(ctx)
	_ = c.leases.Close(ctx) // it complains of what it can't release
	return err
}

// litter makes garbage for as long as the client works.
func (c *client) litter() {
	const size, most = 64 << 10, 256
	var kept [most][]byte
	for i := 0; !c.stopped(); i++ {
		kept[i%most] = make([]byte, size)
		time.Sleep(time.Millisecond)
	}
}

// open opens the pools. One client in four has one without guards, and one in two has
// something around the driver or around the guards.
func (c *client) open(choice *rand.Rand) error {
	cfg, err := mysql.ParseDSN(c.DSN)
	if err != nil {
		return err
	}
	cfg.Logger = &mysql.NopLogger{} // connections are broken on purpose
	cfg.Timeout = opLimit / 2
	cfg.InterpolateParams = choice.IntN(2) == 0
	c.multi = choice.IntN(2) == 0
	cfg.MultiStatements = c.multi
	if lies := guards[c.Without].lies; lies != (faults.Lies{}) {
		cfg.DialFunc = faults.Liar(new(net.Dialer).DialContext, lies)
	}
	wrapper := c.chooseWrapper(choice)
	c.guarded = choice.IntN(4) != 0
	at := c.now()
	c.journal.write(op{ID: c.Name, Kind: "client", Call: at, Return: at, Outcome: succeeded, Form: []string{fmt.Sprintf(
		"guarded %t, interpolates %t, several statements %t, wrapper %q, around the guards %t, pressed for memory %t", c.guarded, cfg.InterpolateParams, c.multi, wrapper.name, wrapper.around, c.Pressed)}})
	if wrapper.name == "no context" {
		cfg.ReadTimeout = 2 * opLimit // nothing else ends a statement
	}
	base, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	rewrite, err := rewriteFor(c.Without)
	if err != nil {
		return err
	}
	if rewrite != nil {
		base = faults.Rewriter(base, rewrite)
	}
	c.plain = sql.OpenDB(base)
	c.pool = sql.OpenDB(wrapper.connector(base, c.guarded))
	if wrapper.around && wrapper.name == "no context" {
		c.guarded = false // the guards don't learn who asks: see txlock.CheckGuarded
	}
	c.pool.SetMaxOpenConns(poolSize)
	if c.gorm, err = c.openGorm(choice.IntN(2) == 0, choice.IntN(2) == 0); err != nil {
		return err
	}
	if c.leases, err = lease.NewManager(c.pool, lease.TTL(c.TTL), lease.Poll(5*time.Millisecond, 50*time.Millisecond)); err != nil {
		return err
	}
	if c.most, err = openMajority(c.Nodes, c.TTL, c.guarded); err != nil {
		return err
	}
	c.jobs, err = job.New(c.pool, c.leases, job.InstanceName(c.Name), job.Log(nil))
	return err
}

// wrapper is what stands between the driver and the guards, or around these.
type wrapper struct {
	name   string
	around bool
}

// chooseWrapper chooses one for every other client, of those that are asked for. Where a
// guard is off there is none: it might do without it.
func (c *client) chooseWrapper(choice *rand.Rand) wrapper {
	names := append([]string{""}, c.Wrappers...)
	chosen := wrapper{names[choice.IntN(len(names))], choice.IntN(2) == 0}
	if choice.IntN(2) == 0 || c.Without != "" {
		chosen.name = ""
	}
	return chosen
}

// connector is the connector of a pool with that wrapper.
func (w wrapper) connector(base driver.Connector, guarded bool) driver.Connector {
	if !w.around {
		base = faults.Wrapped(w.name, base)
	}
	if guarded {
		base = locksqlc.Connector(base)
	}
	if w.around {
		base = faults.Wrapped(w.name, base)
	}
	return base
}

// obey does what it is told, line by line: "fill" and for how long.
func (c *client) obey(orders io.Reader) error {
	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		order, argument, _ := strings.Cut(lines.Text(), " ")
		if order != "fill" {
			return fmt.Errorf("the order %q is not known", lines.Text())
		}
		d, err := time.ParseDuration(argument)
		if err != nil {
			return fmt.Errorf("the order %q: %w", lines.Text(), err)
		}
		go c.fill(d)
	}
	return lines.Err()
}

// fill keeps all connections of the pool by transactions that do nothing.
func (c *client) fill(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var idle sync.WaitGroup
	for range poolSize {
		idle.Go(func() {
			tx, err := c.pool.BeginTx(ctx, nil)
			if err != nil {
				return // none was left, or the server is gone
			}
			<-ctx.Done()
			_ = tx.Rollback()
		})
	}
	idle.Wait()
}

// worker does one operation after the other.
type worker struct {
	*client
	*rand.Rand
	name string
	seq  int
}

// work is all that a worker does.
func (w *worker) work() {
	kinds := w.kinds()
	for !w.stopped() {
		if kinds[w.IntN(len(kinds))]() != succeeded {
			w.think(100 * time.Millisecond) // the server may be gone
		}
		w.think(5 * time.Millisecond)
	}
}

// stopped tells whether the client has been told to stop.
func (c *client) stopped() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

// kinds are what a worker chooses from.
func (w *worker) kinds() []func() outcome {
	switch {
	case guards[w.Without].careless:
		return []func() outcome{w.careless}
	case w.Without == "doom":
		return []func() outcome{w.crossed, w.lock}
	case w.Without == "once":
		return []func() outcome{w.once, w.lock}
	case w.Without == "tick":
		return []func() outcome{w.tickTx, w.lock}
	case w.Without == "majority":
		return []func() outcome{w.majority, w.lock}
	case w.Without == "sale":
		return []func() outcome{w.sell, w.lock}
	case w.Without == "rows":
		return []func() outcome{w.sellUnlocked, w.lock}
	case w.Without == "generated":
		return []func() outcome{w.generatedQueries, w.lock}
	case guards[w.Without].of == ofHerd:
		return []func() outcome{w.herd, w.amongHerds, w.amongHerds, w.amongHerds, w.lock}
	case w.Without == "term":
		return []func() outcome{w.lead, w.lock}
	case guards[w.Without].of == ofAll:
		return []func() outcome{w.acquireAll, w.tryAcquireAll, w.lock}
	case guards[w.Without].of == ofKept:
		return []func() outcome{w.keep, w.keep, w.tryKept, w.lock}
	case strings.HasPrefix(guards[w.Without].of, ofAsked):
		return []func() outcome{w.untilAsked, w.untilAsked, w.ask, w.lock}
	}
	return []func() outcome{
		w.run, w.run, w.lock, w.lock, w.stale, w.stale, w.tryLock, w.waitAtMost, w.lockAny, w.read, w.crossed, w.crossed,
		w.optimistic, w.optimistic, w.compare, w.compare, w.sell, w.sell, w.sell, w.sellUnlocked,
		w.careless, w.careless, w.careless, w.careless, w.careless, w.careless, w.careless, w.careless, w.cancelled, w.session, w.fresh, w.fresh,
		w.gormTransaction, w.gormPlugin, w.gormPlugin, w.gormCondition, w.gormCondition, w.gormVersion, w.gormVersion, w.gormVersion, w.within, w.within,
		w.once, w.once, w.once, w.tickTx, w.tickTx, w.tick, w.tick,
		w.acquire, w.acquire, w.tryAcquire, w.acquireFair, w.acquireTx, w.acquireShared, w.acquireShared, w.acquireWriter, w.acquirePermit, w.acquirePermit,
		w.lead, w.lead, w.majority, w.majority, w.majority, w.generatedQueries, w.generatedQueries, w.herd, w.amongHerds, w.amongHerds,
		w.acquireAll, w.acquireAll, w.tryAcquireAll, w.acquireOne, w.keep, w.keep, w.tryKept,
		w.untilAsked, w.untilAsked, w.untilAsked, w.untilAsked, w.untilAsked, w.ask, w.ask, w.ask, w.ask,
	}
}

// begin notes the call of an operation.
func (w *worker) begin(kind string, keys ...string) op {
	w.seq++
	o := op{ID: fmt.Sprintf("%s-%d", w.name, w.seq), Kind: kind, Keys: keys, Call: w.now()}
	w.journal.write(o)
	return o
}

// think waits for a random time.
func (w *worker) think(most time.Duration) { time.Sleep(time.Duration(w.Int64N(int64(most)))) }

// one returns one of the keys.
func (w *worker) one(keys []string) string { return keys[w.IntN(len(keys))] }

// some returns one to three of the keys, in a random order.
func (w *worker) some(keys []string, least int) []string {
	var chosen []string
	for _, i := range w.Perm(len(keys))[:least+w.IntN(3)] {
		chosen = append(chosen, keys[i])
	}
	return chosen
}

// isolation returns options for a transaction.
func (w *worker) isolation() *sql.TxOptions {
	if w.IntN(2) == 0 {
		return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead}
}

// refused tells whether an error says that nothing was done because somebody else has
// the lock.
func refused(err error) bool {
	return errors.Is(err, txlock.ErrBusy) || errors.Is(err, txlock.ErrWaitTimeout) || errors.Is(err, lease.ErrNoConnection)
}
