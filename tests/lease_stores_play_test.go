package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	playStart     = int64(1_900_000_000_000_000)
	playRetention = 30 * time.Minute
	playKeys      = 2
	neighbour     = "play:0~" // a row of nobody's between those of the keys

	poll     = 10 * time.Millisecond
	settling = 5 * poll // is for how long work in the background is waited for, in the time of the bubble

	settlingRow = 3 * time.Second // outlasts any statement that waits for a row
)

// play is one random history: the same steps of the same managers on a server and on the store in memory, in a bubble of
// testing/synctest. The clocks of both stores stand still but for the steps of time, so no time to live ends by the bubble's.
type play struct {
	sides    [2]*side // the server, the memory
	admin    *sql.DB
	memory   *memstore.Server
	clock    *atomic.Int64
	handles  []*handle
	names    renaming
	open     bool                 // there is a transaction
	owes     bool                 // something is released after it
	tokens   map[store.Row]uint64 // of the rows, which only rise
	waiting  *waiting
	wrong    error // the first difference
	steps    []string
	began    time.Time
	numbered int // handles
	keys     int
}

// side is one of the two stores with its managers and its transaction.
type side struct {
	pool     func() *sql.DB // of a new manager
	pools    []*sql.DB      // to be closed
	managers [2]*lease.Manager
	dead     []*lease.Manager
	begin    func(sql.IsolationLevel) (transaction, error)
	read     func(transaction) error
	tx       transaction
}

type transaction interface {
	txlock.Tx
	Commit() error
	Rollback() error
}

// handle is what was acquired on both sides.
type handle struct {
	asked
	id     int
	leases [2]*lease.Lease
}

func (h *handle) String() string {
	return fmt.Sprintf("lease %d, of %q in manager %d for key %d", h.id, h.leases[1].Owner(), h.manager, h.key)
}

// newPlay begins a history without a row, in a bubble.
func newPlay(db *testdb.DB, rewrite func(string) string, guarded bool) (*play, error) {
	p := &play{
		began: time.Now(), keys: playKeys,
		clock: new(atomic.Int64), memory: memstore.New(),
		names: renaming{make(map[string]string), make(map[string]string)}, tokens: make(map[store.Row]uint64),
	}
	p.clock.Store(playStart)
	p.memory.SetNow(func() time.Time { return time.UnixMicro(p.clock.Load()) })
	var err error
	if p.admin, err = sql.Open("mysql", db.AdminDSN()); err != nil {
		return p, err
	}
	_, err = p.admin.ExecContext(context.Background(), "DELETE FROM lockstep_leases")
	if err == nil { // at REPEATABLE READ it is locked with the readers of the key before it
		_, err = p.admin.ExecContext(context.Background(), "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) "+
			"VALUES (?, 0, '-', LEFT('-', 0), 0, 0, 9000000000000000, 0, 0)", neighbour)
	}
	pool, failed := wire{rewrite: rewrite, clock: p.clock}.pool(db, guarded)
	if err = errors.Join(err, failed); err != nil {
		return p, err
	}
	p.sides[0] = &side{
		pool:  func() *sql.DB { return pool },
		pools: []*sql.DB{pool},
		begin: func(level sql.IsolationLevel) (transaction, error) {
			return pool.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
		},
		read: func(tx transaction) error {
			var n int
			return tx.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM lockstep_locks").Scan(&n)
		},
	}
	p.sides[1] = inMemory(p.memory, guarded)
	for i := range 2 {
		err = errors.Join(err, p.revive(i))
	}
	return p, err
}

// inMemory is the side of the store in memory. A new manager is a new process.
func inMemory(server *memstore.Server, guarded bool) *side {
	s, program := new(side), server.Store()
	s.pool = func() *sql.DB {
		pool := server.Store().Pool()
		s.pools = append(s.pools, pool)
		return pool
	}
	s.begin = func(level sql.IsolationLevel) (transaction, error) {
		tx := program.Begin()
		if level == sql.LevelReadCommitted {
			tx = program.BeginReadCommitted()
		}
		if !guarded {
			tx.Unguarded()
		}
		return tx, nil
	}
	s.read = func(tx transaction) error {
		tx.(*memstore.Tx).Read()
		return nil
	}
	return s
}

// revive starts managers in the place of those that have ended.
func (p *play) revive(i int) (err error) {
	for _, s := range p.sides {
		var failed error
		s.managers[i], failed = lease.NewManager(s.pool(), lease.PurgeEvery(0, playRetention), lease.Poll(poll, poll))
		err = errors.Join(err, failed)
	}
	return err
}

// end ends all that is open.
func (p *play) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	p.finish(false)
	err := p.admin.Close()
	if p.waiting != nil {
		p.waiting.cancel()
		time.Sleep(settling)
	}
	for _, s := range p.sides {
		if s == nil {
			continue
		}
		for _, m := range append(s.dead, s.managers[:]...) {
			if m != nil {
				err = errors.Join(err, m.Close(ctx))
			}
		}
		for _, pool := range s.pools {
			err = errors.Join(err, pool.Close())
		}
	}
	return err
}

// step notes what is done and goes on, unless there was a difference before.
func (p *play) step(format string, args ...any) bool {
	if p.wrong == nil {
		p.steps = append(p.steps, fmt.Sprint(time.Since(p.began), " ")+fmt.Sprintf(format, args...))
	}
	return p.wrong == nil
}

// differ notes the first difference.
func (p *play) differ(format string, args ...any) {
	if p.wrong == nil {
		p.wrong = fmt.Errorf("after %v:\n%s\n%s", time.Since(p.began), strings.Join(p.steps, "\n"), fmt.Sprintf(format, args...))
	}
}

// both calls on both sides and compares the errors, of which it returns the server's.
func (p *play) both(what string, call func(i int, s *side) error) error {
	var errs [2]error
	for i, s := range p.sides {
		errs[i] = call(i, s)
	}
	p.same(what, errs)
	return errs[0]
}

// same compares errors by what a program may ask of them.
func (p *play) same(what string, errs [2]error) {
	if kindsOf(errs[0]) != kindsOf(errs[1]) {
		p.differ("%s: %v on the server, %v in memory", what, errs[0], errs[1])
	}
}

// kinds are the errors that are compared.
var kinds = []error{
	txlock.ErrBusy, txlock.ErrLost, txlock.ErrNotHeld, txlock.ErrUpgrade, txlock.ErrTooManyHolds, txlock.ErrStaleSnapshot,
	txlock.ErrInvalidKey, txlock.ErrInvalidOption, txlock.ErrWaitTimeout, txlock.ErrDeadlock, txlock.ErrTxDoomed,
	txlock.ErrNoTransaction, lease.ErrGuarded, lease.ErrClosed, lease.ErrReplaced, lease.ErrOtherDatabase,
	context.Canceled, context.DeadlineExceeded, sql.ErrTxDone,
}

// kindsOf returns which of the kinds an error is, and "" for none.
func kindsOf(err error) (all string) {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			all += kind.Error() + "; "
		}
	}
	if err != nil && all == "" {
		return "of another kind"
	}
	return all
}

// outcome is what a call has returned.
type outcome struct {
	lease *lease.Lease
	err   error
}

// acquired compares what was acquired on both sides.
func (p *play) acquired(a asked, got [2]outcome) {
	p.same("acquire", [2]error{got[0].err, got[1].err})
	l, m := got[0].lease, got[1].lease
	if p.wrong != nil || l == nil && m == nil {
		return
	}
	if l == nil || m == nil || l.Token() != m.Token() || l.Shared() != m.Shared() || !p.names.same("owner", l.Owner(), m.Owner()) {
		p.differ("acquired: %v on the server, %v in memory", describe(l), describe(m))
		return
	}
	p.numbered++
	p.handles = append(p.handles, &handle{asked: a, id: p.numbered, leases: [2]*lease.Lease{l, m}})
}

func describe(l *lease.Lease) string {
	if l == nil {
		return "nothing"
	}
	return fmt.Sprintf("token %d of %q, shared %v", l.Token(), l.Owner(), l.Shared())
}

// compare compares the call that waits, what the handles say, the rows, and what List and
// Inspect tell. What goes on in the background may take a while.
func (p *play) compare() {
	for tries := 0; p.wrong == nil; tries++ {
		time.Sleep(settling)
		synctest.Wait()
		difference := errors.Join(p.compareWaiting(), p.compareHandles(), p.compareRows(), p.compareInfos())
		if difference == nil {
			return
		}
		if tries == 10 {
			p.differ("%v", difference)
		}
	}
}

func (p *play) compareHandles() error {
	for _, h := range p.handles {
		if l, m := h.leases[0], h.leases[1]; kindsOf(l.Err()) != kindsOf(m.Err()) || l.Token() != m.Token() {
			return fmt.Errorf("%s says %q, token %d on the server, and %q, token %d in memory", h, kindsOf(l.Err()), l.Token(), kindsOf(m.Err()), m.Token())
		}
	}
	return nil
}

func playKey(key int) txlock.Key { return txlock.Named(fmt.Sprintf("play:%d", key)) }

// renaming is what names that are made at random are called on the other side.
type renaming struct{ to, from map[string]string }

// agrees tells whether two names may be the same.
func (r renaming) agrees(kind, here, there string) bool {
	here, there = kind+" "+here, kind+" "+there
	to, known := r.to[here]
	if from, taken := r.from[there]; known || taken {
		return to == there && from == here
	}
	return true
}

// same is agrees that remembers.
func (r renaming) same(kind, here, there string) bool {
	if !r.agrees(kind, here, there) {
		return false
	}
	here, there = kind+" "+here, kind+" "+there
	r.to[here], r.from[there] = there, here
	return true
}

// rowPair is a row of the server, and one in memory that may be the same.
type rowPair struct {
	at          [2]store.Row
	said        [2]memstore.Contents
	here, there []string // the holds
}

// each calls with all names that were made at random.
func (p rowPair) each(call func(kind, here, there string) bool) bool {
	for i := range p.here {
		if !call("hold", p.here[i], p.there[i]) {
			return false
		}
	}
	return call("owner", p.said[0].Owner, p.said[1].Owner) &&
		call("slot of "+p.at[0].Key, fmt.Sprint(p.at[0].Slot), fmt.Sprint(p.at[1].Slot))
}

// sameRow tells whether a row of the server is one of those in memory, which it returns.
func (p *play) sameRow(at store.Row, row memstore.Contents, left map[store.Row]memstore.Contents) (store.Row, bool) {
	candidates := []store.Row{at}
	if at.Slot > store.MaxPermits { // a reader's, which is any
		candidates = slices.Collect(maps.Keys(left))
	}
	for _, where := range candidates {
		other, there := left[where]
		if !there || where.Key != at.Key || where.Slot != at.Slot && where.Slot <= store.MaxPermits {
			continue
		}
		pair := rowPair{
			at: [2]store.Row{at, where}, said: [2]memstore.Contents{row, other},
			here: holdsOf(row.Holders), there: holdsOf(other.Holders),
		}
		row, other := plainly(row), plainly(other)
		if row == other && len(pair.here) == len(pair.there) && pair.each(p.names.agrees) {
			return where, pair.each(p.names.same)
		}
	}
	return store.Row{}, false
}

// plainly is a row without names, and without the number of the session.
func plainly(row memstore.Contents) memstore.Contents {
	row.Owner, row.Holders = "", ""
	row.Session = min(row.Session, 1)
	return row
}

// holdLength is the length of a hold in the list.
const holdLength = 23

func holdsOf(list string) (all []string) {
	for i := 0; i < len(list); i += holdLength {
		all = append(all, list[i:min(i+holdLength, len(list))])
	}
	return all
}

// compareRows compares the tables.
func (p *play) compareRows() error {
	rows, err := p.admin.QueryContext(context.Background(),
		"SELECT name, slot, IF(slot < 0, RTRIM(owner), owner), holders, token, ttl_us, expires_us, guards, used_for, conn_id, IF(slot < 0, RTRIM(label), label), asked_us, release_reason FROM lockstep_leases WHERE name <> ?", neighbour)
	if err != nil {
		return err
	}
	defer rows.Close()
	left, _ := p.memory.Rows()
	tokens := make(map[store.Row]uint64)
	for rows.Next() {
		var at store.Row
		var row memstore.Contents
		if err := rows.Scan(&at.Key, &at.Slot, &row.Owner, &row.Holders, &row.Token, &row.TTL, &row.Expires, &row.Guards, &row.Use, &row.Session, &row.Label, &row.Asked, &row.Reason); err != nil {
			return err
		}
		tokens[at] = row.Token
		if row.Token < p.tokens[at] {
			return fmt.Errorf("the token of %v is %d after %d", at, row.Token, p.tokens[at])
		}
		where, same := p.sameRow(at, row, left)
		if !same {
			return fmt.Errorf("at %d the server has the row %+v\n%+v\nthe memory has:\n%s", p.clock.Load(), at, row, rowsOf(left))
		}
		delete(left, where)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("at %d the memory has rows that the server doesn't have:\n%s", p.clock.Load(), rowsOf(left))
	}
	p.tokens = tokens
	return nil
}

func rowsOf(rows map[store.Row]memstore.Contents) string {
	var b strings.Builder
	for at, row := range rows {
		fmt.Fprintf(&b, "%+v: %+v\n", at, row)
	}
	return b.String()
}

// compareInfos compares what List and Inspect tell of who holds what, and who waits.
func (p *play) compareInfos() error {
	var told [2][]string
	for i, s := range p.sides {
		all, err := s.managers[0].List(context.Background())
		if err != nil {
			return err
		}
		for key := range p.keys {
			one, err := s.managers[1].Inspect(context.Background(), playKey(key))
			if err != nil {
				return err
			}
			others := one.Others
			one.Others = nil
			all = slices.Concat(all, []lease.Info{one}, others)
		}
		for _, info := range all {
			told[i] = append(told[i], p.told(info))
		}
		slices.Sort(told[i])
	}
	if !slices.Equal(told[0], told[1]) {
		return fmt.Errorf("List and Inspect say\n%s\non the server, and in memory\n%s", strings.Join(told[0], "\n"), strings.Join(told[1], "\n"))
	}
	return nil
}

// told is what is told of a lease, with the name of its owner in memory, and without what
// is made at random.
func (p *play) told(info lease.Info) string {
	if there, known := p.names.to["owner "+info.Owner]; known {
		info.Owner = strings.TrimPrefix(there, "owner ")
	}
	if info.Kind == lease.Reader {
		info.Slot = 0
	}
	if info.Kind == lease.Waiter {
		info.Session, info.Since = 0, time.Time{}
		if info.Owner != "ann" && info.Owner != "bob" {
			info.Owner = "" // whoever it is
		}
	}
	return fmt.Sprintf("%+v", info)
}

// use is what a key is used for by its row in memory, 0 where that is missing.
func (p *play) use(key int) int64 {
	rows, _ := p.memory.Rows()
	return int64(rows[entryOf(key)].Use)
}

func entryOf(key int) store.Row {
	return store.Row{Key: playKey(key).String(), Slot: store.LeaseSlot}
}

// locked tells whether the open transaction has locked a row of a key, of an owner if that
// is not "".
func (p *play) locked(key int, owner string) bool {
	_, rows := p.memory.Rows()
	return has(rows, key, owner)
}

// has tells whether one of these rows is of a key, and of an owner if that is not "".
func has(rows map[store.Row]memstore.Contents, key int, owner string) bool {
	for at, row := range rows {
		if at.Key == playKey(key).String() && at.Slot >= store.LeaseSlot && (owner == "" || row.Owner == owner) {
			return true
		}
	}
	return false
}

// lockedFor tells whether it may have locked the row of a handle: any row of the key where
// the handle's owner has none, since it is somebody else's by now.
func (p *play) lockedFor(h *handle) bool {
	owner := h.leases[1].Owner()
	if rows, _ := p.memory.Rows(); !has(rows, h.key, owner) {
		owner = ""
	}
	return p.locked(h.key, owner) || !h.leases[1].Shared() && p.entryLocked(h.key)
}

func (p *play) entryLocked(key int) bool {
	_, rows := p.memory.Rows()
	_, locked := rows[entryOf(key)]
	return locked
}

// grace is for how many microseconds a transaction may have a row whose time is over.
const grace = 5e6

// outlives tells whether the open transaction has locked a row whose time will have been
// over for so long at a moment that whoever wants it ends the transaction.
func (p *play) outlives(moment int64) bool {
	_, rows := p.memory.Rows()
	for at, row := range rows {
		if at.Slot >= store.LeaseSlot && row.Holders != "" && row.Expires+grace-1e6 <= moment { // the clock is one of whole seconds
			return true
		}
	}
	return false
}
