// Package ops gathers what operators want to see: who holds which lock or lease, since
// when and from where, who waits for whom, and what is wrong with the setup. It reads only,
// waits for nobody, and answers what it can where a privilege is missing.
//
// [Room.Look] takes a [Picture] of all that is held and waited for, and [Picture.Tree]
// orders it by who waits for whom. The types have JSON names, which are documented in
// docs/operations.md and stay.
package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
)

var queries = gen.New()

// Room looks at one database. It may be used by several goroutines, which look one after
// the other. It remembers what a look has cost, so that those who look again and again
// don't burden the server: see Look.
type Room struct {
	db *sql.DB

	mu      sync.Mutex
	scanned scan
	known   map[Row]grant // what was held at the last look
	Debug   map[string]time.Duration
}

// New returns a Room for the database of the pool. It sends nothing yet. The pool should
// write arguments into the texts of statements (interpolateParams=true), which saves round
// trips. It stays the caller's.
func New(db *sql.DB) *Room { return &Room{db: db} }

// Seconds is a time that has passed or is left.
type Seconds float64

func seconds(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// String writes it for people: "0.2s", "14s", "3m12s", "26h3m".
func (s Seconds) String() string {
	d := time.Duration(float64(s) * float64(time.Second))
	switch {
	case d < 0:
		return "-" + (-s).String()
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// Picture is what is held and waited for at one moment.
type Picture struct {
	Taken    time.Time          `json:"taken"`   // by the server's clock
	Version  string             `json:"version"` // of the server
	Database string             `json:"database"`
	User     string             `json:"user"` // the account that looks
	Locks    []Lock             `json:"locks"`
	Leases   []Lease            `json:"leases"`
	Waits    []Wait             `json:"waits"`
	Sessions map[uint64]Session `json:"sessions"` // those of Locks, Leases and Waits
	Gaps     []Gap              `json:"gaps"`
}

// Kind is what a row stands for.
type Kind string

// The kinds of rows.
const (
	Named     Kind = "lock"      // of a named key
	Hashed    Kind = "slot"      // one of the 65,536 that hashed keys share
	LeaseRow  Kind = "lease"     // of a lease, a reader or a permit
	Turnstile Kind = "queue"     // of a lease's waiters with Fair
	Once      Kind = "once"      // of a key of Once
	Job       Kind = "job"       // of a job
	Other     Kind = "other row" // of a table that is not lockstep's
)

// Row is what sessions lock and wait for.
type Row struct {
	Kind  Kind   `json:"kind"`
	Key   string `json:"key,omitempty"`   // the name; empty for a slot and for other rows
	Slot  int64  `json:"slot"`            // of a hashed key, or which row of a lease
	Table string `json:"table,omitempty"` // of other rows, with the index
}

// String names the row for people.
func (r Row) String() string {
	switch r.Kind {
	case Hashed:
		return fmt.Sprintf("slot %d", r.Slot)
	case Other:
		return "a row of " + r.Table
	case Named:
		return r.Key
	}
	return string(r.Kind) + " " + r.Key
}

// Mode is how a row is locked.
type Mode string

// The modes.
const (
	Exclusive Mode = "exclusive"
	Shared    Mode = "shared"
)

// Lock is the lock of a row that an open transaction holds.
type Lock struct {
	Row
	Mode    Mode      `json:"mode"`
	Session uint64    `json:"session"`
	Owner   string    `json:"owner,omitempty"` // the label of the holder, unless it is shared
	Token   uint64    `json:"token,omitempty"`
	Since   time.Time `json:"since,omitzero"` // when it was granted
	Held    Seconds   `json:"held_s"`         // for how long, or how long its transaction is open
	Waiters int       `json:"waiters"`
	// Keys are those of the keys that the caller has named which fall on this slot: a slot
	// doesn't know its keys.
	Keys []string `json:"keys,omitempty"`
}

// Lease is a lease, a reader or a permit that is held, or the first waiter of a queue.
type Lease struct {
	Key     string    `json:"key"`
	Kind    string    `json:"kind"` // exclusive, reader, permit, waiter
	Slot    int64     `json:"slot"`
	Owner   string    `json:"owner"`
	Note    string    `json:"note"` // what the owner tells of itself: by default host and process
	Token   uint64    `json:"token,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Held    Seconds   `json:"held_s"`
	TTL     Seconds   `json:"ttl_s"`
	Left    Seconds   `json:"left_s"`    // until it ends unless it is renewed
	Renewed Seconds   `json:"renewed_s"` // how long ago
	Holds   int       `json:"holds"`     // of the same owner
	Asked   string    `json:"asked,omitempty"`
	AskedAt time.Time `json:"asked_at,omitzero"`
	Leads   bool      `json:"leads,omitempty"`   // it is the term of an election
	Session uint64    `json:"session,omitempty"` // of a waiter
	Waiters int       `json:"waiters"`           // in the queue of Fair; others look again and again, and can't be seen
}

// Late tells whether the holder has not renewed the lease for longer than holders do.
func (l Lease) Late() bool { return l.Kind != waiter && l.Renewed > l.TTL*2/3 }

const waiter = "waiter"

// Wait is a session that waits for a row.
type Wait struct {
	Row
	Mode    Mode    `json:"mode"`
	Session uint64  `json:"session"`
	For     Seconds `json:"for_s"`
	// Blockers are the sessions that hold the row. Those that wait for it, too, are not
	// among them. More than one are candidates, if Unsure.
	Blockers []uint64 `json:"blockers"`
	Unsure   bool     `json:"unsure,omitempty"`
	place    string   // which of the rows of another's table
}

// Session is a session of the server.
type Session struct {
	ID       uint64  `json:"id"`
	User     string  `json:"user,omitempty"`
	Host     string  `json:"host,omitempty"`
	Program  string  `json:"program,omitempty"` // by its connection attributes
	Database string  `json:"database,omitempty"`
	Command  string  `json:"command,omitempty"` // Sleep, Query ...
	State    string  `json:"state,omitempty"`
	For      Seconds `json:"for_s"` // how long it has been idle, or executes its statement
	InTx     bool    `json:"in_transaction"`
	TxAge    Seconds `json:"transaction_s"`
	RowLocks int64   `json:"row_locks"`
	// Statement is what it executes, or the last that it has executed, if the server tells.
	Statement string `json:"statement,omitempty"`
	Last      bool   `json:"last,omitempty"` // the statement has ended
}

// Idle tells whether the session executes nothing.
func (s Session) Idle() bool { return s.Command == "Sleep" }

// Gap is what could not be seen, and how it could.
type Gap struct {
	What string `json:"what"`
	Cure string `json:"cure"`
}

// String is a sentence.
func (g Gap) String() string { return g.What + ": " + g.Cure }

// Look takes a picture. Of the keys, each hashed one is named with its slot.
//
// MariaDB lists only the locks that somebody waits for: to find the others, Look reads the
// tables of locks. That is done again only after 300 times of what it has taken, at most a
// minute, so that who looks every second hardly burdens the server: a look in between shows
// the locks that were found before and are still held, and those that somebody waits for.
//
// It returns the errors of the driver and of the server. What is not allowed is a Gap and
// no error, unless it is SELECT on the tables of lockstep.
func (r *Room) Look(ctx context.Context, keys ...string) (*Picture, error) {
	return r.look(ctx, false, keys)
}

// look is Look. It may try what this user may see although there is nothing to be seen.
func (r *Room) look(ctx context.Context, try bool, keys []string) (*Picture, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &look{Room: r, Picture: Picture{Sessions: make(map[uint64]Session)}, keys: bySlot(keys), try: try}
	if err := l.take(ctx); err != nil {
		return nil, fault.Explain("look at the locks", err)
	}
	return &l.Picture, nil
}

// look is one call of Look.
type look struct {
	*Room
	Picture
	maria   bool
	try     bool
	grantee string
	keys    map[int64][]string

	seen  []rowLock       // locks that the server lists, granted and waited for
	exact bool            // seen has all the locks on lockstep's rows
	open  map[uint64]*txn // the open transactions by their sessions, nil if unknown
}

// txn is an open transaction.
type txn struct {
	id, requested string // requested is the lock that it waits for
	age, waits    Seconds
	locks         int64
	statement     string
}

// rowLock is a lock as the server lists it.
type rowLock struct {
	Row
	mode    Mode
	session uint64
	waiting bool
	place   string // the same for all locks on a row
	unsure  bool   // another session may have it
}

func (l *look) take(ctx context.Context) error {
	if err := l.facts(ctx); err != nil {
		return err
	}
	if err := l.catalog(ctx); err != nil {
		return err
	}
	held, err := l.held(ctx)
	if err != nil {
		return err
	}
	if err := l.leases(ctx); err != nil {
		return err
	}
	l.assemble(held)
	l.dropStrangers()
	return l.describe(ctx)
}

// facts reads what the look depends on.
func (l *look) facts(ctx context.Context) error {
	clock, err := queries.ServerClock(ctx, l.db)
	if err != nil {
		return err
	}
	l.Taken, l.Version = time.UnixMicro(clock.NowUs).UTC(), clock.Version
	if i := strings.LastIndexByte(l.Version, ' '); i >= 0 { // words on the session come before
		l.Version = l.Version[i+1:]
	}
	l.maria = strings.Contains(l.Version, "MariaDB")
	var database sql.NullString
	if err := l.db.QueryRowContext(ctx, "SELECT DATABASE(), CURRENT_USER()").Scan(&database, &l.User); err != nil {
		return err
	}
	if l.Database = database.String; l.Database == "" {
		return ErrNoDatabase
	}
	l.grantee = quoted(l.User)
	return nil
}

// ErrNoDatabase is returned for a pool without a database.
var ErrNoDatabase = errors.New("no database is selected: name the one with lockstep's tables in the data source name")

// quoted is an account as GRANT wants it.
func quoted(account string) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	at := strings.LastIndexByte(account, '@')
	if at < 0 {
		return quote(account)
	}
	return quote(account[:at]) + "@" + quote(account[at+1:])
}

// since returns how long ago a moment of the server's clock was.
func (l *look) since(t time.Time) Seconds {
	if t.IsZero() {
		return 0
	}
	return seconds(max(0, l.Taken.Sub(t)))
}
