package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/faults"
)

// fault is something bad that is done to a site, and undone after a while.
type fault struct {
	at, lasts time.Duration // since the beginning of the run
	kind      string
	client    int    // to whom, where it is one client
	choice    uint64 // what else is to choose
}

// faultKind is a kind of fault: how often it comes beside the others of its lane, how
// long it lasts in times to live of a lease, and what it does.
type faultKind struct {
	weight      int
	least, most float64
	do          func(s *site, ctx context.Context, f fault) error
}

// lanes are the kinds of faults. Those of one lane come one after the other: the
// server's, the clients', their networks', and what becomes of a server that goes on.
var lanes = []map[string]faultKind{
	{
		"kill connections":    {8, 0, 0, (*site).killConnections},
		"kill server":         {1, 0, 1, serving((*site).killServer)},
		"stop server":         {3, 0.1, 0.5, serving((*site).stopServer)},
		"stop server for ttl": {1, 1.2, 2, serving((*site).stopServer)},
	},
	{
		"kill client":         {2, 0, 0.5, (*site).killClient},
		"set clock apart":     {1, 0, 0.5, (*site).setClockApart},
		"stop client":         {2, 0.1, 0.5, (*site).stopClient},
		"stop client for ttl": {4, 1.2, 3, (*site).stopClient},
		"fill pool":           {2, 0.2, 2, (*site).fillPool},
	},
	{
		"cut network":  {2, 0, 2, (*site).cutNetwork},
		"slow network": {5, 0.5, 2, (*site).slowNetwork},
		"hang network": {2, 0.3, 3, (*site).hangNetwork},
	},
	{
		"fill disk":               {2, 0.5, 3, condition((*site).fillDisk)},
		"make read-only":          {2, 0.2, 2, setting(readOnly, always("read_only"), 1, 0, (*site).reads)},
		"use up connections":      {2, 0.2, 2, setting(always("max_connections"), always("max_connections"), 10, 1000, (*site).crowded)},
		"use up statements":       {2, 0.5, 3, setting(always("max_prepared_stmt_count"), always("max_prepared_stmt_count"), 0, 16382, (*site).unprepared)},
		"kill commits":            {3, 0.5, 2, condition((*site).killCommits)},
		"migrate":                 {2, 0, 0.5, condition((*site).migrate)},
		"set clock forward":       {2, 0, 0, (*site).stepForward},
		"set clock back":          {2, 0.5, 3, (*site).stepBack},
		"set clock back for long": {1, 10, 14, (*site).stepBack},
		"slow or fast clock":      {2, 1, 4, serving((*site).setRate)},
	},
	{
		"cut node":  {1, 0.2, 3, (*site).cutNetwork},
		"slow node": {1, 0.5, 2, (*site).slowNetwork},
		"hang node": {1, 0.3, 3, (*site).hangNetwork},
	},
}

// clockFaults are those that need a server's clock.
var clockFaults = []string{"set clock forward", "set clock back", "set clock back for long", "slow or fast clock"}

// serverFaults are others of MySQL and MariaDB alone.
var serverFaults = []string{"fill disk", "make read-only", "use up connections", "use up statements", "kill commits"}

// serving makes a fault while the server is neither killed nor stopped.
func serving(do func(s *site, ctx context.Context, f fault) error) func(*site, context.Context, fault) error {
	return func(s *site, ctx context.Context, f fault) error {
		s.serving.Lock()
		defer s.serving.Unlock()
		if err := s.revive(); err != nil {
			return err
		}
		err := do(s, ctx, f)
		if err != nil && testdb.Await(opLimit, func() bool { return len(s.gone()) > 0 }) { // and so it failed
			return s.revive()
		}
		return err
	}
}

// ended is felt where a server has ended by itself.
const ended = "the server has ended"

// gone are the servers of TiDB that have ended by themselves: one may panic where a session is
// killed in a transaction.
func (s *site) gone() (servers []*testdb.Server) {
	if s.engine != testdb.TiDB {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.servers), (*testdb.Server).Running)
}

// revive starts them again.
func (s *site) revive() (err error) {
	for _, server := range s.gone() {
		s.feel(ended)
		err = errors.Join(err, restart(server))
	}
	return err
}

// faultNames are the names of all kinds.
func faultNames() (names []string) {
	for _, lane := range lanes {
		names = append(names, sortedKeys(lane)...)
	}
	return names
}

// checkFaults refuses the name of a fault that there isn't.
func checkFaults(kinds []string) error {
	for _, kind := range kinds {
		if !slices.Contains(faultNames(), kind) {
			return fmt.Errorf("-faults: %q is not one of %s", kind, strings.Join(faultNames(), ", "))
		}
	}
	return nil
}

// schedule is what is done in one lane: the same for the same seed.
func schedule(o options, seed uint64, lane map[string]faultKind) (faults []fault) {
	r := rand.New(rand.NewPCG(o.seed, seed))
	var names []string
	for _, name := range sortedKeys(lane) {
		if len(o.kinds) == 0 || slices.Contains(o.kinds, name) {
			names = append(names, slices.Repeat([]string{name}, lane[name].weight)...)
		}
	}
	if len(names) == 0 {
		return nil
	}
	for at := time.Duration(0); ; {
		at += time.Duration(r.Int64N(int64(3 * o.ttl)))
		kind := names[r.IntN(len(names))]
		k := lane[kind]
		lasts := time.Duration((k.least + r.Float64()*(k.most-k.least)) * float64(o.ttl))
		if at+lasts > o.duration {
			return faults
		}
		faults = append(faults, fault{at, lasts, kind, r.IntN(o.perSite), r.Uint64()})
		at += lasts
	}
}

// torment does what is scheduled. What comes late, because what was before it took
// longer, is done at once.
func (s *site) torment(ctx context.Context, begun time.Time, faults []fault, lane map[string]faultKind) {
	for _, f := range faults {
		if sleep(ctx, time.Until(begun.Add(f.at))) != nil {
			return
		}
		if err := lane[f.kind].do(s, ctx, f); err != nil {
			s.fail(fmt.Errorf("%s: %w", f.kind, err))
			return
		}
		s.count(f.kind)
	}
}

// sleep waits for a time, or for the end of the context.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lasting waits until the fault is to be undone.
func (f fault) lasting(ctx context.Context) { _ = sleep(ctx, f.lasts) }

// killConnections ends sessions of the clients, each with one chance in three. The
// server may be gone, or not answer.
func (s *site) killConnections(ctx context.Context, f fault) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	r := rand.New(rand.NewPCG(f.choice, 0))
	sessions, _ := s.sessions(ctx) // none of a server that is stopped or killed
	for _, id := range sessions {
		if r.IntN(3) == 0 {
			_, _ = s.admin.ExecContext(ctx, fmt.Sprintf("KILL %d", id)) // it may have ended by itself
		}
	}
	return nil
}

// sessions are the sessions of the clients.
func (s *site) sessions(ctx context.Context) ([]int64, error) {
	return s.idsOf(ctx, s.admin, "user = '"+clientUser+"'")
}

// idsOf are those of the sessions of which a condition is true.
func (s *site) idsOf(ctx context.Context, db querier, condition string) (ids []int64, err error) {
	processes := s.engine.Processes()
	if s.engine == testdb.TiDB {
		processes = "information_schema.cluster_processlist" // of all servers
	}
	err = eachRow(ctx, db, "SELECT id FROM "+processes+" WHERE "+condition, func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	})
	return ids, err
}

func (s *site) killServer(ctx context.Context, f fault) error {
	server := s.of(f.choice)
	if err := server.Kill(); err != nil {
		return err
	}
	f.lasting(ctx)
	return restart(server)
}

// restart starts a server again, also when the run ends meanwhile.
func restart(server *testdb.Server) error {
	return patiently(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return server.Restart(ctx)
	})
}

// patiently does what needs a port that another process may have for a moment.
func patiently(do func() error) (err error) {
	for range 20 {
		if err = do(); err == nil {
			return nil
		}
		time.Sleep(time.Second / 2)
	}
	return err
}

func (s *site) stopServer(ctx context.Context, f fault) error {
	server := s.of(f.choice)
	if err := server.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	f.lasting(ctx)
	return server.Signal(syscall.SIGCONT)
}

func (s *site) killClient(ctx context.Context, f fault) error {
	s.kill(s.clients[f.client])
	f.lasting(ctx)
	return s.start(f.client, 0)
}

// setClockApart starts the client again in a time namespace of its own, in which the
// monotonic clock and that which counts suspended time are days ahead of the others',
// and one of the other (time_namespaces(7)).
func (s *site) setClockApart(ctx context.Context, f fault) error {
	s.kill(s.clients[f.client])
	f.lasting(ctx)
	return s.start(f.client, time.Duration(1+f.choice%uint64(10*24))*time.Hour)
}

func (s *site) stopClient(ctx context.Context, f fault) error {
	if !s.alive(s.clients[f.client]) {
		return s.start(f.client, 0)
	}
	process := s.clients[f.client].process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	f.lasting(ctx)
	return process.Signal(syscall.SIGCONT)
}

// fillPool makes the client keep all its connections by transactions that do nothing.
func (s *site) fillPool(ctx context.Context, f fault) error {
	if !s.alive(s.clients[f.client]) {
		return s.start(f.client, 0)
	}
	_, err := fmt.Fprintf(s.clients[f.client].orders, "fill %v\n", f.lasts)
	f.lasting(ctx)
	return err
}

// network is that of a client, or to a database of majorities.
func (s *site) network(f fault) *faults.Network {
	if strings.HasSuffix(f.kind, " node") {
		return s.nodes[f.choice%nodes]
	}
	return s.clients[f.client].network
}

func (s *site) cutNetwork(ctx context.Context, f fault) error {
	n := s.network(f)
	if err := n.Down(); err != nil {
		return err
	}
	f.lasting(ctx)
	return patiently(n.Up)
}

// slowNetwork delays what is sent, what is answered, or both. In three of four cases what
// is on its way at the end is lost: where that is answers, what was asked for is done.
func (s *site) slowNetwork(ctx context.Context, f fault) error {
	n := s.network(f)
	streams := [][]string{{"upstream", "downstream"}, {"upstream"}, {"downstream"}, {"downstream"}}[f.choice%4]
	for _, stream := range streams {
		if err := n.Slow(stream, 0, time.Duration(f.choice>>8%1000)*s.ttl/1000); err != nil {
			return err
		}
	}
	f.lasting(ctx)
	if f.choice>>2%4 == 0 {
		return n.Mend()
	}
	if err := n.Down(); err != nil {
		return err
	}
	return patiently(n.Up)
}

func (s *site) hangNetwork(ctx context.Context, f fault) error {
	n := s.network(f)
	if err := n.Hang(); err != nil {
		return err
	}
	f.lasting(ctx)
	return n.Mend()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
