package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Store has the leases of one database. The methods of Session, called on a Store, each
// work at once and in a transaction of their own.
type Store interface {
	Session

	// Now reads this machine's clock. It is a method so that a test can have another
	// clock.
	Now() Instant
	// Ready makes sure that the server's clock was read within the last minute. It returns
	// an error if the database's sessions are unfit for leases.
	Ready(ctx context.Context) error
	// ReadClock reads the server's clock again.
	ReadClock(ctx context.Context) error
	// SharesLeases returns schema.ErrMultiPrimary on a cluster where readers would not
	// exclude the writers on other nodes.
	SharesLeases(ctx context.Context) error
	// Identity returns a comparable value that is the same for two stores on the same
	// pool.
	Identity() any

	// Reserve makes sure, before a grant, that there is a connection for renewals even if
	// the program uses its pool up. Settle returns that connection to the pool if it isn't
	// needed; idle reports whether the manager holds nothing. Full reports whether the program's
	// pool has no connection left.
	Reserve(ctx context.Context) error
	Settle(idle func() bool)
	Full() bool
	// Beside returns what sends statements on another connection than those that the
	// program's transactions have, without waiting for one of these, or nil if there is none.
	// Of a guarded pool that is used up it knows one after Reserve.
	Beside() Session

	// Queued waits in the server's queue until a row is free, at most for the given time,
	// and calls send while it has the row locked. It returns ErrLocked if the time is
	// over.
	Queued(ctx context.Context, at Row, atMost time.Duration, send func(Session) error) error
	// Wait does what Queued does, on another connection than the one for renewals. It
	// returns ErrLent if there is none. It asks limit for the time; brief says that the
	// program may need the connection, and goOn false ends the call.
	Wait(ctx context.Context, at Row, limit func(brief bool) (atMost time.Duration, goOn bool), send func(Session) error) error
	// Turn waits in the server's queue for the queue row of a key, and returns when it is
	// the first. It calls before right before it asks for its place, and again if the row
	// was removed meanwhile. It returns ErrNoTurn if there is no connection to wait on.
	Turn(ctx context.Context, key, owner, label string, before func() error) (Turn, error)
	// MayTurn counts a waiter that is going to call Turn, if there is a connection for it.
	// The caller then calls Turn, and is no longer counted when that fails or its place is
	// left.
	MayTurn() bool

	// Blockers returns the open transactions that have written rows of a key.
	Blockers(ctx context.Context, key string) ([]Blocker, error)
	// End ends the session of a transaction that is still open. The server knows sessions
	// only: the session may have begun another transaction meanwhile.
	End(ctx context.Context, key string, b Blocker) error
	// Join joins the caller's transaction.
	Join(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) (Joined, error)

	// List returns what is held, by key and slot, and the first waiter of each key.
	List(ctx context.Context) ([]Info, error)
	// Inspect returns the row of a lease, if there is one, the readers and permits that
	// are held, and the first waiter.
	Inspect(ctx context.Context, key string) ([]Info, error)
	// AskHolders asks everybody who has held something under a key since before the given
	// moment by the server's clock, and has not been asked since, to give it up.
	AskHolders(ctx context.Context, key, why string, since int64) (Asked, error)
	// Clean removes the rows that were not used for the retention, and returns how many.
	Clean(ctx context.Context, retention time.Duration) (int, error)
	// Sweep removes the rows of a key's readers that nobody has used for their TTL.
	Sweep(ctx context.Context, key string) error
	// Epoch tells which data the database has and since when: an identifier, empty if no
	// epoch was begun, and the age. BeginEpoch begins an epoch if there is none.
	Epoch(ctx context.Context) (id string, age time.Duration, err error)
	BeginEpoch(ctx context.Context, id string, age time.Duration) error

	// Close closes what the store has opened. The pool stays open.
	Close() error
}

// Session sends statements: each in a transaction of its own, or all in one transaction.
// Those that write don't wait for locks, except Guard.
type Session interface {
	// Take takes a lease, a reader's place or a permit, if it is free.
	Take(ctx context.Context, ask Ask) (Answer, error)
	// Release removes a hold. It returns Absent, Refused if the hold isn't there, Expired,
	// or Done.
	Release(ctx context.Context, at Row, hold string) (Reply, error)
	// Keep is Release that keeps the row held if the hold was the only one and so much time
	// hasn't passed since the grant: until then, by an owner whose name begins with
	// Released, and it returns Kept.
	Keep(ctx context.Context, at Row, hold string, atLeast time.Duration) (Reply, error)
	// Renew extends a lease if the row still has what is claimed: Absent, Refused or Done,
	// or Questioned instead of Done: see Question.
	Renew(ctx context.Context, c Claim) (Reply, error)
	// RenewMany renews many rows. A row that is not in its answer is not claimed any more.
	// It also returns the questions for those that it has renewed.
	RenewMany(ctx context.Context, claims []Claim) (map[Row]Standing, []Question, error)
	// Question returns what the holder of a claim was asked last. Its At is 0 if there is
	// nothing.
	Question(ctx context.Context, c Claim) (Question, error)
	// Raise makes the token of a claim at least the claim's, whatever it was before, and
	// returns it: Absent, Refused or Done.
	Raise(ctx context.Context, c Claim) (Answer, error)
	// Guard writes the row of a claim, so that nobody can take the lease over before the
	// transaction ends: Refused or Done. It waits for the row's lock.
	Guard(ctx context.Context, c Claim) (Reply, error)
	// Force frees a row, whoever holds it, or if the token isn't 0 only that grant: Absent, Refused
	// if nobody holds it, or another one, or Done.
	Force(ctx context.Context, at Row, only uint64) (Reply, error)
	// Reap ends the readers of a key whose time is over, except those that guard a
	// transaction.
	Reap(ctx context.Context, key string) error

	// Make makes a row, free, if it is missing, outside of the program's transactions. It
	// returns ErrLocked if somebody has the row locked or is making it, or has a gap locked
	// where the row would be: at once on MariaDB, after a second or two on MySQL.
	Make(ctx context.Context, at Row) error
	// Use sets what a key is used for, unless that was set before, and returns what the
	// key is used for now: still Exclusive if permits are asked for while somebody holds the
	// lease. It returns ErrLocked if its row is locked or missing.
	Use(ctx context.Context, key string, use Use) (Use, error)
	// Resize changes the number of permits: Absent, Refused if the key is no semaphore, or
	// Done.
	Resize(ctx context.Context, key string, permits int) (Reply, error)

	// Look reads a row without a lock.
	Look(ctx context.Context, at Row) (Glance, error)
	// Stored reads the token and the holds of a row, as the session sees them.
	Stored(ctx context.Context, at Row) (Stored, error)
	// Permits counts the permits of a key whose slots are from first to last.
	Permits(ctx context.Context, key string, first, last int) (Permits, error)
	// Readers counts the readers of a key.
	Readers(ctx context.Context, key string) (Readers, error)
	// ReaderAmong returns which of the owners reads under a key, or "". It asks only for
	// readers of one process, whose holds have the given beginning.
	ReaderAmong(ctx context.Context, key string, owners []string, begins string) (string, error)
	// Places reads the rows of the readers of a key. While a transaction has the row of the
	// lease locked, no reader comes, and a place that isn't held doesn't change.
	Places(ctx context.Context, key string) ([]Place, error)
	// DoneInSnapshot returns what Place.Done is of the places with these slots, as the
	// transaction's snapshot shows it, without those that it doesn't show.
	DoneInSnapshot(ctx context.Context, key string, slots []int64) (map[int64]int64, error)
	// UnchangedSinceSnapshot locks the row of a lease. It returns txlock.ErrStaleSnapshot if
	// somebody has held the lease exclusively since the transaction's snapshot was taken, or
	// places were removed since, and ErrLocked if that can't be told.
	UnchangedSinceSnapshot(ctx context.Context, key string) error
}

// Turn is the first place in the server's queue for a key. Each read on it tells the
// server that its process is alive. Leave ends it.
type Turn interface {
	Session
	Leave()
}

// Joined is the caller's transaction.
type Joined interface {
	// Include sends statements in the transaction: see txlock.Scope.
	Include(ctx context.Context, verb string, key txlock.Key, send func(ctx context.Context, in *In) error) error
}

// In is the caller's transaction while statements are sent in it.
type In struct {
	Session
	// Reading is the context for plain reads, which take the snapshot if there is none.
	Reading context.Context
	// Snapshot tells that plain reads may show data older than the statements' locks.
	Snapshot bool
	// Fenced tells that the same key was fenced before in the transaction, and still is.
	Fenced bool
	// ID identifies the transaction's session on the server.
	ID uint64
	// Fence is to be set if the transaction must not be committed without the locks of
	// the statements.
	Fence bool
}

// Instant is a moment by this machine's clock, in nanoseconds. It is neither sent to the
// server nor compared with another machine's.
type Instant int64

// Never is later than every moment.
const Never Instant = 1<<63 - 1

// Add returns the moment that is later by d.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Until returns how much later the moment j is.
func (i Instant) Until(j Instant) time.Duration { return time.Duration(j - i) }

// Row is a row of the table of leases.
type Row struct {
	Key  string
	Slot int64
}

// The slots of the rows of a key. Permits have 1 to MaxPermits, readers have slots above
// that.
const (
	QueueSlot  = -1
	LeaseSlot  = 0
	MaxPermits = 1000
)

// Compare orders rows by their keys and slots.
func (r Row) Compare(other Row) int {
	return cmp.Or(strings.Compare(r.Key, other.Key), cmp.Compare(r.Slot, other.Slot))
}

// MaxToken is the highest token that a lease can have.
const MaxToken = 1<<62 - 1

// Claim is what a row must contain to be somebody's.
type Claim struct {
	Row
	Owner, Hold string
	Token       uint64
	Told        int64 // the moment of the last question that its holder knows
}

// Ask is a request for a lease, for a reader's place in the given slot, or for one of
// Permits permits.
type Ask struct {
	Row
	Permits     int
	Owner, Hold string
	Label       string // what the owner tells of itself
	TTL         time.Duration
	NotAfter    Instant // after that the server refuses it, by its own clock
	Fair        bool    // it is asked for with Fair
	InTurn      bool    // it passes nobody in the queue of Fair
}

// The length of a hold, and of its beginning, which is the same for a whole process.
const (
	HoldLength = 1 + 22
	HoldBegins = 1 + 8
)

// Released begins the name of who holds a row that was kept; no other owner's name does.
const Released = "released: "

// WaitsFor reports whether a writer that has the row of a key waits until a reader, by their owners, has
// released it: a reader comes beside a writer only if it has the same owner. One that has released its row,
// which is kept, waits for nobody.
func WaitsFor(writer, reader string) bool {
	return reader != writer && !strings.HasPrefix(writer, Released)
}

// Reply is the answer to a request.
type Reply int

// The replies.
const (
	Absent  Reply = iota // the row is locked by somebody, or missing
	Refused              // it is somebody else's
	Full                 // the row's list of holds is full
	Expired              // the hold was removed, but its time was over
	Late                 // it came too late by the server's clock
	Other                // the key is used for something else
	Kept                 // the hold was removed, and the row stays held
	Done
	Questioned // done, and somebody asks the owner to give it up
)

// Answer is a reply, and after Done the token.
type Answer struct {
	Reply
	Token  uint64
	Slot   int64   // of the row that was asked for
	Shared bool    // there may be readers
	Seen   *Glance // what the row has shown if it was read to tell why it wasn't granted
}

// Standing is what has become of a row that was to be renewed.
type Standing int

// The standings.
const (
	Gone    Standing = iota // it has not what is claimed any more
	Skipped                 // it has, but somebody has locked it
	Renewed
)

// Use is what a key is used for: exclusive leases, shared ones too, or a semaphore of n
// permits, which is -n.
type Use int64

// The uses.
const (
	Exclusive Use = 0
	Shared    Use = 1
)

// Glance is what a look at a row shows.
type Glance struct {
	Exists bool
	Owner  string        // who holds it
	Label  string        // what that tells of itself
	Token  uint64        // of the last grant
	Left   time.Duration // for how much longer it is held, 0 if it is free
	TTL    time.Duration // what it was acquired with
	Use    Use
}

// Held reports whether the lease is held. If more than its TTL is left, the server's clock
// was set back, and it doesn't count as held.
func (g Glance) Held() bool { return g.Left > 0 && g.Left <= g.TTL }

// Stored is what a row contains.
type Stored struct {
	Exists  bool
	Token   uint64
	Holders string
}

// Permits are how many rows of permits there are, and how many of them are held.
type Permits struct {
	Rows, Held int
	Left       time.Duration // until the first permit that is held ends
}

// Readers counts the readers of a key; Held includes those that have expired.
type Readers struct {
	Held, Expired int
	Left          time.Duration // until the last of them ends
	Idle          int           // rows that nobody has used for their TTL
}

// Place is the row of a reader.
type Place struct {
	Slot    int64
	Owner   string
	Held    bool  // also if that has expired
	Expired bool  // its time is over
	Done    int64 // rises with each reader, and with each transaction that one has guarded
}

// MostWaits is how many calls of Wait a manager makes at a time. Each uses a connection.
const MostWaits = 4

// ErrLocked is returned for a row that is locked at the moment, or missing.
var ErrLocked = fmt.Errorf("%w: its row is locked", txlock.ErrBusy)

// ErrNoTurn is returned if there is no connection to wait on.
var ErrNoTurn = errors.New("no connection for the queue")

// ErrLent is returned if the program has lent a connection already.
var ErrLent = errors.New("lease: the program has lent a connection already")
