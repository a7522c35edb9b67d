package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var must, onServers = testdb.Must, testdb.OnDatabases

// newStore is a store that has read the server's clock.
func newStore(t *testing.T, db *testdb.DB, mutators ...func(*mysql.Config)) *Store {
	t.Helper()
	s := New(db.Connect(t, mutators...))
	t.Cleanup(func() {
		err := s.Close()
		testdb.ErrorIf(t, err != nil, "close the store: %v", err)
	})
	must(t, s.Ready(t.Context()))
	return s
}

// makeRow makes a row of lockstep_leases, free and with an old token unless set says
// otherwise.
func makeRow(t *testing.T, db *testdb.DB, name, set string) {
	t.Helper()
	for _, query := range []string{
		"INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, asked_us) VALUES (?, 0, '-', '', 1000, 0, 0, 0, 7, 9)",
		"UPDATE lockstep_leases SET " + set + " WHERE name = ? AND slot = 0",
	} {
		db.Exec(t, query, name)
	}
}

// written is what a statement leaves in a row, the times counted from the token.
type written struct {
	Owner, Holders, Label            string
	TTL, Expires, Use, Guards, Asked int64
	Connected                        bool
}

func readRow(t *testing.T, db *testdb.DB, name string) (w written, token int64) {
	t.Helper()
	row := db.Admin().QueryRowContext(t.Context(), `SELECT owner, holders, label, ttl_us, CAST(expires_us AS SIGNED) - CAST(token AS SIGNED),
		used_for, guards, asked_us, conn_id > 0, token FROM lockstep_leases WHERE name = ?`, name)
	err := row.Scan(&w.Owner, &w.Holders, &w.Label, &w.TTL, &w.Expires, &w.Use, &w.Guards, &w.Asked, &w.Connected, &token)
	testdb.FatalIf(t, err != nil, "read %s: %v", name, err)
	return w, token
}

// hold is an entry of a list of holds, of another process for every letter.
func hold(letter string) string { return ";" + strings.Repeat(letter, 22) }

const future = "UNIX_TIMESTAMP() * 1000000 + 60000000"

// TestOneStatementForSeveral proves that a statement for several leases takes and frees
// those for which it is simple, each with its own owner and TTL, that it leaves the
// rest alone, waits for no locked row, and leaves in the rows what a statement for each does.
func TestOneStatementForSeveral(t *testing.T) {
	inLeaseModes(t, testSeveral)
}

func testSeveral(t *testing.T, db *testdb.DB, s *Store) {
	unique := fmt.Sprintf("%d/?'\"\\é;--/", rand.Int64())
	cases := []struct {
		name, set string // of the row, "" for a missing one
		taken     bool
	}{
		{"free", "guards = 7", true},
		{"held", "owner = 'other', holders = '" + hold("x") + "', ttl_us = 60000000, expires_us = " + future, false},
		{"expired", "owner = 'other', holders = '" + hold("x") + "', expires_us = 5", true},
		{"missing", "", false},
		{"entered", "owner = 'me 4', holders = '" + hold("x") + "', ttl_us = 60000000, expires_us = " + future, false},
		{"shared", "used_for = 1", false},
		{"semaphore", "used_for = -3", false},
		{"ahead", "token = " + future, false},
		{"late", "guards = 7", false},
		{"locked", "guards = 7", false},
		{"free, too", "guards = 8", true},
		{"two holds", "owner = 'other', holders = '" + hold("x") + hold("y") + "', expires_us = 5", true},
	}
	var all []rawsql.Wanted
	var want uint32
	notAfter := s.Now().Add(time.Minute)
	for i, c := range cases {
		w := rawsql.Wanted{
			Name: unique + c.name, Hold: hold(string(rune('a' + i))), Owner: fmt.Sprint("me ", i), Label: strings.Repeat("'\\é?", i),
			TTLUs: int64(i+1) * 60e6, NotAfter: s.clock.MicrosAt(notAfter),
		}
		if c.set != "" {
			makeRow(t, db, w.Name, c.set)
		}
		if c.name == "late" {
			w.NotAfter = 5
		}
		if c.taken {
			want |= 1 << i
		}
		all = append(all, w)
	}
	blocker := testdb.Got(db.Admin().BeginTx(t.Context(), nil))(t)
	defer func() { must(t, blocker.Rollback()) }()
	testdb.Got(blocker.ExecContext(t.Context(), "SELECT 1 FROM lockstep_leases WHERE name = ? FOR UPDATE", unique+"locked"))(t)
	done, clock, err := s.takes.send(t.Context(), all)
	testdb.FatalIf(t, err != nil || done != want, "taken %b, want %b, %v", done, want, err)
	for i, w := range all {
		if done>>i&1 == 0 {
			continue
		}
		single := store.Ask{
			Row: store.Row{Key: w.Name + "/single"}, Owner: w.Owner, Label: w.Label, Hold: w.Hold,
			TTL: time.Duration(w.TTLUs) * time.Microsecond, NotAfter: notAfter,
		}
		makeRow(t, db, single.Key, cases[i].set)
		a, err := s.session.Take(t.Context(), single)
		testdb.FatalIf(t, err != nil || a.Reply != store.Done, "%s by its own statement: %+v, %v", cases[i].name, a, err)
		got, token := readRow(t, db, w.Name)
		other, _ := readRow(t, db, single.Key)
		testdb.ErrorIf(t, token != clock || got != other, "%s: token %d of %d\n%+v, by its own statement\n%+v", cases[i].name, token, clock, got, other)
	}
	// One row is somebody else's by now, and one is still locked.
	db.Exec(t, "UPDATE lockstep_leases SET holders = ? WHERE name = ?", hold("z"), unique+"free, too")
	done, _, err = s.releases.send(t.Context(), all)
	want &^= 1 << 10
	testdb.FatalIf(t, err != nil || done != want, "freed %b, want %b, %v", done, want, err)
	for i, w := range all {
		if cases[i].set == "" {
			continue
		}
		got, _ := readRow(t, db, w.Name)
		free := got.Holders == ""
		testdb.ErrorIf(t, done>>i&1 == 1 != free && cases[i].taken, "%s after the release: %+v", cases[i].name, got)
	}
	done, _, err = s.releases.send(t.Context(), all)
	testdb.ErrorIf(t, err != nil || done != 0, "freed again %b, %v", done, err)
}

// TestClockFarAway proves that nothing is taken where the server's clock is not within
// reach of the reply.
func TestClockFarAway(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := newStore(t, db)
		name := fmt.Sprint(rand.Int64())
		makeRow(t, db, name, "guards = 7")
		all := []rawsql.Wanted{{Name: name, Hold: hold("a"), Owner: "me", TTLUs: 1e6, NotAfter: math.MaxInt64}}
		for _, away := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
			near := time.Now().Add(away).UnixMicro()
			result := testdb.Got(s.pool.ExecContext(t.Context(), rawsql.AcquireMany(all, near)))(t)
			n, err := result.RowsAffected()
			testdb.ErrorIf(t, err != nil || n != 0, "%v away: %d rows, %v", away, n, err)
		}
		done, _, err := s.takes.send(t.Context(), all)
		testdb.ErrorIf(t, err != nil || done != 1, "by the server's clock: %b, %v", done, err)
	})
}

// batches are calls that meet, and the statements that they are sent by.
type batches struct {
	t        *testing.T
	batcher  batcher
	mu       sync.Mutex
	sent     [][]string // the rows of each statement for several, in their order
	contexts []context.Context
	replies  chan reply
	calls    []*calling
}

// reply answers a statement for several rows.
type reply struct {
	done uint32
	err  error
}

// calling is one call, and what has become of it.
type calling struct {
	name  string
	end   context.CancelFunc
	over  bool
	token int64
	err   error
}

// inBatches runs a test in the time of synctest. In the end nothing is left.
func inBatches(t *testing.T, test func(t *testing.T, m *batches)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &batches{t: t, replies: make(chan reply)}
		m.batcher.send = func(ctx context.Context, all []rawsql.Wanted) (uint32, int64, error) {
			var names []string
			for _, w := range all {
				names = append(names, w.Name)
			}
			m.mu.Lock()
			m.sent, m.contexts = append(m.sent, names), append(m.contexts, ctx)
			number := int64(len(m.sent))
			m.mu.Unlock()
			select {
			case r := <-m.replies:
				return r.done, number, r.err
			case <-ctx.Done():
				return 0, 0, ctx.Err()
			}
		}
		test(t, m)
		m.leave(len(m.alone()))
		m.batcher.sending.Wait()
		if of := &m.batcher; of.alone != 0 || of.batches != 0 || len(of.queue) > 0 {
			t.Errorf("in the end %d alone, %d statements, %d in the queue", of.alone, of.batches, len(of.queue))
		}
		for _, c := range m.calls {
			testdb.ErrorIf(t, !c.over, "%s has not returned", c.name)
		}
	})
}

// call makes calls for rows of these numbers.
func (m *batches) call(from, to int) {
	for n := from; n < to; n++ {
		ctx, end := context.WithCancel(m.t.Context())
		c := &calling{name: fmt.Sprint(n), end: end}
		m.calls = append(m.calls, c)
		go func() {
			c.token, c.err = m.batcher.join(ctx, rawsql.Wanted{Name: c.name})
			c.over = true
		}()
		synctest.Wait()
	}
}

// statements are the rows of each statement so far, and its context.
func (m *batches) statements() ([][]string, []context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent, m.contexts
}

// sends checks the rows of the last statement, and how many there were.
func (m *batches) sends(n int, rows ...string) {
	m.t.Helper()
	sent, _ := m.statements()
	m.want("statements", len(sent), n)
	if n > 0 {
		m.want("sent", sent[len(sent)-1], rows)
	}
}

// alone are the calls that were told to send their own statement.
func (m *batches) alone() (names []string) {
	for _, c := range m.calls {
		if c.over && c.token == 0 && c.err == nil {
			names = append(names, c.name)
		}
	}
	return names
}

func (m *batches) leave(n int) {
	for range n {
		m.batcher.leave()
		synctest.Wait()
	}
}

func (m *batches) answer(r reply) {
	m.replies <- r
	synctest.Wait()
}

func (m *batches) want(what string, got, want any) {
	m.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		m.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// numbers are the names of rows.
func numbers(from, to int) (names []string) {
	for n := from; n < to; n++ {
		names = append(names, fmt.Sprint(n))
	}
	return names
}

// TestBatches proves that few calls at once send their own statement, that the next ones
// are sent together in the order in which they came, and that who comes meanwhile waits for
// the next statement. A row that is not written is sent by itself.
func TestBatches(t *testing.T) {
	inBatches(t, func(_ *testing.T, m *batches) {
		m.call(0, mostAlone+10)
		m.want("alone", m.alone(), numbers(0, mostAlone))
		m.leave(1)
		m.sends(1, numbers(mostAlone, mostAlone+10)...)
		m.call(26, 36)
		m.leave(mostAlone - 1)
		m.sends(1, numbers(mostAlone, mostAlone+10)...)
		m.answer(reply{done: 1<<10 - 1 - 1<<3})
		m.want("not written", m.alone(), append(numbers(0, mostAlone), "19"))
		m.want("the clock", []int64{m.calls[16].token, m.calls[25].token}, []int64{1, 1})
		m.sends(2, numbers(26, 36)...)
		m.call(36, 36+fewestInBatch-1)
		m.leave(1) // of the one that was not written
		m.answer(reply{done: 1<<10 - 1})
		m.want("the first of too few", m.alone()[mostAlone+1:], numbers(36, 37))
		m.call(50, 51)
		m.leave(1)
		m.sends(2, numbers(26, 36)...)
		m.want("the rest", m.alone()[mostAlone+2:], append(numbers(37, 36+fewestInBatch-1), "50"))
		m.call(60, 61)
		m.want("alone again", m.calls[len(m.calls)-1].over, true)
		m.calls[19].err, m.calls[36].err = errors.New("left"), errors.New("left")
		for _, c := range m.calls[:mostAlone] { // their leave was called above
			c.err = errors.New("left")
		}
	})
}

// TestFullBatches proves that a full statement doesn't wait for another, and that two calls
// for one row are never sent by one statement.
func TestFullBatches(t *testing.T) {
	inBatches(t, func(_ *testing.T, m *batches) {
		m.call(0, mostAlone)
		m.call(0, rawsql.MaxBatch-4)
		m.call(3, 7) // again
		m.sends(1, numbers(0, rawsql.MaxBatch-4)...)
		m.call(100, 100+rawsql.MaxBatch)
		m.sends(2, numbers(100, 100+rawsql.MaxBatch)...)
		m.want("alone", m.alone(), append(numbers(0, mostAlone), numbers(3, 7)...))
		m.answer(reply{done: 1<<32 - 1})
		m.answer(reply{done: 1<<32 - 1})
	})
}

// TestBatchOverdue proves that those who wait are sent though a statement before them has
// no answer, and that those have theirs.
func TestBatchOverdue(t *testing.T) {
	inBatches(t, func(_ *testing.T, m *batches) {
		m.call(0, mostAlone+fewestInBatch)
		time.Sleep(batchPatience - 1)
		m.sends(0)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		m.sends(1, numbers(mostAlone, mostAlone+fewestInBatch)...)
		m.call(100, 103)
		time.Sleep(batchPatience)
		synctest.Wait()
		m.want("alone", m.alone()[mostAlone:], numbers(100, 103))
		m.answer(reply{done: 1<<fewestInBatch - 1})
	})
}

// TestBatchFails proves that all hear an error after which they may have been granted,
// and that after any other each sends its own.
func TestBatchFails(t *testing.T) {
	lost := errors.New("the connection is gone")
	for _, c := range []struct {
		err error
		own bool
	}{
		{lost, false},
		{unknownReply("a statement", "nothing"), false},
		{&mysql.MySQLError{Number: 1927}, false}, // ER_CONNECTION_KILLED
		{&mysql.MySQLError{Number: 3101}, false}, // a member of Group Replication, see fault.Overtaken
		{&mysql.MySQLError{Number: 3100}, false}, // the same, whose commit has met an error
		{&mysql.MySQLError{Number: 1180}, false}, // a member of Galera, likewise
		{&mysql.MySQLError{Number: 1213}, true},  // a deadlock, and Galera's answer to a conflict
		{&mysql.MySQLError{Number: 1205}, true},
		{&mysql.MySQLError{Number: 1153}, true}, // ER_NET_PACKET_TOO_LARGE
		{mysql.ErrPktTooLarge, true},
	} {
		inBatches(t, func(t *testing.T, m *batches) {
			m.call(0, mostAlone+10)
			m.leave(1)
			m.calls[0].err = lost // it has left
			m.answer(reply{err: c.err})
			for _, call := range m.calls[mostAlone:] {
				testdb.ErrorIf(t, call.token != 0 || c.own && call.err != nil || !c.own && !errors.Is(call.err, c.err),
					"after %v: %d, %v", c.err, call.token, call.err)
			}
		})
	}
}

// TestBatchEnds proves that a call returns when its context ends, wherever it is, that
// the others are sent and answered nevertheless, and that a statement which nobody waits
// for is ended.
func TestBatchEnds(t *testing.T) {
	inBatches(t, func(t *testing.T, m *batches) {
		ends := func(c *calling) {
			t.Helper()
			c.end()
			synctest.Wait()
			testdb.ErrorIf(t, !c.over || !errors.Is(c.err, context.Canceled), "call %s: over %v, %v", c.name, c.over, c.err)
		}
		m.call(0, mostAlone+10)
		ends(m.calls[mostAlone+2])
		m.leave(1)
		m.calls[0].err = context.Canceled // it has left
		m.sends(1, slices.Delete(numbers(mostAlone, mostAlone+10), 2, 3)...)
		ends(m.calls[mostAlone])
		ends(m.calls[mostAlone+1])
		m.call(100, 110)
		m.answer(reply{done: 1<<8 - 1}) // not the last
		m.want("of another", m.calls[mostAlone+3].token, 1)
		m.want("not written", m.alone()[mostAlone-1:], numbers(mostAlone+9, mostAlone+10))
		_, contexts := m.statements()
		for _, c := range m.calls[mostAlone+10:] {
			m.want("the statement's context", contexts[1].Err(), nil)
			ends(c)
		}
		m.want("the statement's context", contexts[1].Err(), context.Canceled)
	})
}
