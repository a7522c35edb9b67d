// Package store is the seam between the managers of leases and the server: what they ask
// of it, named by meaning. Package sqlstore asks a database, package memstore keeps all
// in memory. The managers of package lease run unchanged on either.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Store has the leases of one database. What the methods of Session do by a Store is done
// at once, in a transaction of its own.
type Store interface {
	Session

	// Now reads this machine's clock. It is a method, so that a test can have another.
	Now() Instant
	// Ready makes sure that the server's clock was read within the last minute, and
	// refuses a database whose sessions are unfit for leases.
	Ready(ctx context.Context) error
	// ReadClock reads the server's clock again.
	ReadClock(ctx context.Context) error
	// SharesLeases returns schema.ErrMultiPrimary on a cluster where readers would not
	// exclude the writers of other nodes.
	SharesLeases(ctx context.Context) error
	// Identity is comparable, and the same for two stores on the same pool.
	Identity() any

	// Reserve makes sure of a connection to renew on, before a grant where the program
	// can use its pool up. Settle returns it where it isn't needed: idle tells that the
	// manager holds nothing. Full tells that the program has no connection left.
	Reserve(ctx context.Context) error
	Settle(idle bool)
	Full() bool

	// Queued waits in the server's queue for a row to be free, at most for a time, and
	// calls send with the row locked. It returns ErrLocked where the time is over.
	Queued(ctx context.Context, at Row, atMost time.Duration, send func(Session) error) error
	// Wait is Queued on a connection beside the one to renew on. It returns ErrLent where
	// there is none to be had. Brief tells limit that the program may need the connection
	// itself.
	Wait(ctx context.Context, at Row, limit func(brief bool) (atMost time.Duration, goOn bool), send func(Session) error) error
	// Turn waits in the server's queue for the turnstile of a key and returns when it is
	// the first. It calls before right before it asks for its place, and again where the
	// row was removed meanwhile. It returns ErrNoTurn where there is no connection to wait
	// on.
	Turn(ctx context.Context, key, owner string, before func() error) (Turn, error)
	// MayTurn counts one who is going to call Turn, if there are connections for it. Who
	// has called it calls Turn, which counts it out in the end.
	MayTurn() bool

	// Blockers returns the open transactions that have written rows of a key.
	Blockers(ctx context.Context, key string) ([]Blocker, error)
	// End ends the session of a transaction, if that is open still: the server knows
	// sessions only, and this one may have begun another transaction.
	End(ctx context.Context, key string, b Blocker) error
	// Join joins the caller's transaction.
	Join(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) (Joined, error)

	// List returns all that is held, by key and slot, and the first waiter of each key.
	List(ctx context.Context) ([]Info, error)
	// Inspect returns the row of a lease, if it is there, what is held of its readers
	// and permits, and the first waiter.
	Inspect(ctx context.Context, key string) ([]Info, error)
	// Clean removes the rows that were last used before the retention, and returns how
	// many.
	Clean(ctx context.Context, retention time.Duration) (int, error)
	// Sweep removes the rows of a key's readers that nobody has used for as long as
	// their time to live.
	Sweep(ctx context.Context, key string) error
	// Epoch reads which data the database has, and for how long it has had them; begun
	// tells whether there is an epoch. BeginEpoch begins one where there is none.
	Epoch(ctx context.Context) (id string, age time.Duration, err error)
	BeginEpoch(ctx context.Context, id string, age time.Duration) error

	// Close closes what the store has opened. The pool stays open.
	Close() error
}

// Session sends statements: each in a transaction of its own, or all in one. None of
// those that write waits for a row, but for Guard.
type Session interface {
	// Take takes a lease, a reader's place or a permit, if it is free.
	Take(ctx context.Context, ask Ask) (Answer, error)
	// Release removes a hold: Absent, Refused where it isn't there, Expired, or Done. Of
	// a row with the slot UnknownSlot it looks for the slot.
	Release(ctx context.Context, at Row, hold string) (Reply, error)
	// Renew sets the expiry of what is still claimed: Absent, Refused or Done.
	Renew(ctx context.Context, c Claim) (Reply, error)
	// RenewMany is Renew for many rows. What is not in its answer isn't claimed any more.
	RenewMany(ctx context.Context, claims []Claim) (map[Row]Standing, error)
	// Raise raises the token of a claim, whatever that was, to the claim's at least, and
	// returns it: Absent, Refused or Done.
	Raise(ctx context.Context, c Claim) (Answer, error)
	// Guard writes the row of a claim, so that nobody can take it over before the
	// transaction ends: Refused or Done. It waits for the row.
	Guard(ctx context.Context, c Claim) (Reply, error)
	// Force frees a row whoever holds it: Absent, Refused where nobody does, or Done.
	Force(ctx context.Context, at Row) (Reply, error)
	// Reap ends the readers of a key whose time is over, those that guard a transaction
	// aside.
	Reap(ctx context.Context, key string) error

	// Make makes a row, free, if it is missing. It returns ErrLocked where somebody has
	// it locked, or is making it.
	Make(ctx context.Context, at Row) error
	// Use says what a key is used for, unless it was said before, and returns what it is
	// used for now. It returns ErrLocked where its row is locked, or missing.
	Use(ctx context.Context, key string, use Use) (Use, error)
	// Resize changes the number of permits: Absent, Refused where the key is no
	// semaphore, or Done.
	Resize(ctx context.Context, key string, permits int) (Reply, error)

	// Look reads a row without a lock.
	Look(ctx context.Context, at Row) (Glance, error)
	// Stored reads what a row says, as the session sees it.
	Stored(ctx context.Context, at Row) (Stored, error)
	// Permits counts the permits of a key with slots from first to last.
	Permits(ctx context.Context, key string, first, last int) (Permits, error)
	// Readers counts the readers of a key.
	Readers(ctx context.Context, key string) (Readers, error)
	// ReaderAmong returns which of the owners reads under a key in the process whose
	// holds begin so, or "".
	ReaderAmong(ctx context.Context, key string, owners []string, begins string) (string, error)
	// LockReaders locks the rows of the readers of a key, and returns who they are.
	LockReaders(ctx context.Context, key string) ([]Reader, error)
	// UnchangedSinceSnapshot returns txlock.ErrStaleSnapshot where the transaction's
	// snapshot shows less than has been done under the lease of a key since, and
	// ErrLocked where that can't be told.
	UnchangedSinceSnapshot(ctx context.Context, key string) error
}

// Turn is the place of the first in the queue for a key. What it reads tells the server
// that it is alive.
type Turn interface {
	Session
	Leave()
}

// Joined is the caller's transaction.
type Joined interface {
	// Include sends statements in it; see txlock.Scope.
	Include(ctx context.Context, verb string, key txlock.Key, send func(ctx context.Context, in *In) error) error
}

// In is the caller's transaction while statements are included.
type In struct {
	Session
	// Reading is the context for plain reads, which fix the snapshot.
	Reading context.Context
	// Snapshot tells that plain reads may show data from before the statements' locks.
	Snapshot bool
	// Fenced tells that a lock of the same name was fenced before, and holds.
	Fenced bool
	// ID is that of the transaction's session on the server.
	ID uint64
	// Fence is to be set where the transaction must not be committed without what the
	// statements have locked.
	Fence bool
}

// Instant is a moment by this machine's clock, in nanoseconds. It is never sent to the
// server, nor compared with another machine's.
type Instant int64

// Never is later than every moment.
const Never Instant = 1<<63 - 1

// Add returns the moment that much later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Until returns how much later the other moment is.
func (i Instant) Until(j Instant) time.Duration { return time.Duration(j - i) }

// Row is a row of the table of leases.
type Row struct {
	Key  string
	Slot int64
}

// The slots of the rows of a key. Those of permits are 1 to MaxPermits, those of readers
// lie above.
const (
	UnknownSlot   = -2 // of a permit whose grant was not answered
	TurnstileSlot = -1
	LeaseSlot     = 0
	MaxPermits    = 1000
)

// Claim is what a row must say to be somebody's.
type Claim struct {
	Row
	Owner, Hold string
	Token       uint64
}

// Ask is what is asked for: a lease, or in the slot given a reader's place, or one of so
// many permits.
type Ask struct {
	Row
	Permits     int
	Owner, Hold string
	TTL         time.Duration
	NotAfter    Instant // the server refuses it by its own clock after that
	InTurn      bool    // it passes nobody at the turnstile
}

// The lengths of a hold: the first characters are those of the process.
const (
	HoldLength = 1 + 22
	HoldBegins = 1 + 8
)

// Reply is what has become of what was asked.
type Reply int

// The replies.
const (
	Absent  Reply = iota // the row is locked by somebody, or missing
	Refused              // it is somebody else's
	Full                 // the list of holds is full
	Expired              // the hold was removed, but its time was over
	Late                 // it came too late by the server's clock
	Other                // the key is used for something else
	Done
)

// Answer is a reply, and where that is Done the token.
type Answer struct {
	Reply
	Token  uint64
	Slot   int64 // of the row that it is about
	Shared bool  // there may be readers
}

// Standing is what has become of a row that was to be renewed.
type Standing int

// The standings.
const (
	Gone    Standing = iota // it is not claimed any more
	Skipped                 // it is, and somebody has locked it
	Renewed
)

// Use is what a key is used for: Shared, or a semaphore of n permits, which is -n.
type Use int64

// The uses.
const (
	Exclusive Use = 0
	Shared    Use = 1
)

// Glance is what a look shows.
type Glance struct {
	Exists bool
	Owner  string        // who holds it
	Left   time.Duration // for how much longer it isn't to be had, 0 if it is
	TTL    time.Duration // what it was acquired with
	Use    Use
}

// Held tells whether it is held, and not only by a clock set back.
func (g Glance) Held() bool { return g.Left > 0 && g.Left <= g.TTL }

// Stored is what a row says.
type Stored struct {
	Exists bool
	Token  uint64
	Holds  string
}

// Permits are how many rows of permits there are, and how many of them are held.
type Permits struct {
	Rows, Held int
	Left       time.Duration // until the first of those that are held ends
}

// Readers are how many readers a key has: those whose time is over too, and how many
// these are.
type Readers struct {
	Held, Expired int
	Left          time.Duration // for how much longer the last of them reads
	Idle          int           // rows that nobody has used for as long as their time to live
}

// Reader is who reads.
type Reader struct{ Owner, Hold string }

// Blocker is an open transaction that has written a row of a key: it guards the lease, or
// has acquired it.
type Blocker struct {
	Written
	Over time.Duration // since when the lease is over, negative while it isn't
}

// Written is what a transaction has written.
type Written struct {
	Slot                   int64
	Token, Guards, Session uint64
}

// String says what it does.
func (b Blocker) String() string {
	return fmt.Sprintf("an open transaction of session %d has its row locked", b.Session)
}

// Info is what a row says to people.
type Info struct {
	Row
	Owner   string
	Token   uint64
	TTL     time.Duration
	Left    time.Duration
	Holds   int
	Use     Use
	Since   time.Time // of a waiter
	Session uint64    // of a waiter
}

// MostWaits is how many calls of Wait a manager makes at a time, each of which has a
// connection.
const MostWaits = 4

// ErrLocked is returned for a row that is locked at the moment, or missing.
var ErrLocked = fmt.Errorf("%w: its row is locked", txlock.ErrBusy)

// ErrNoTurn is returned where there is no connection to wait on.
var ErrNoTurn = errors.New("no connection for the queue")

// ErrLent is returned where the program has lent a connection already.
var ErrLent = errors.New("lease: the program has lent a connection already")
