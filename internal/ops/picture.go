package ops

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// Seconds is a time that has passed or is left. One that isn't known is no number, and null in JSON.
type Seconds float64

var unknown = Seconds(math.NaN())

func seconds(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// Known reports whether the time is known.
func (s Seconds) Known() bool { return !math.IsNaN(float64(s)) }

// MarshalJSON writes a number, or null.
func (s Seconds) MarshalJSON() ([]byte, error) {
	if !s.Known() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(s))
}

// String writes it for people: "0.2s", "14s", "3m12s", "26h3m", "-" if it isn't known.
func (s Seconds) String() string {
	d := time.Duration(float64(s) * float64(time.Second))
	switch {
	case !s.Known():
		return "-"
	case d < 0:
		return "-" + (-s).String()
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// Count is how many sessions there are. One that isn't known is below 0, and null in JSON.
type Count int

const uncounted Count = -1

// MarshalJSON writes a number, or null.
func (c Count) MarshalJSON() ([]byte, error) {
	if c < 0 {
		return []byte("null"), nil
	}
	return json.Marshal(int(c))
}

// String writes it for people, "-" if it isn't known.
func (c Count) String() string {
	if c < 0 {
		return "-"
	}
	return strconv.Itoa(int(c))
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
	Ages

	elections map[string]bool // at which a process has ever been on standby
	unlisted  bool            // the server has not listed its transactions: its list is old, or can't be read
}

// Ages are for how long two parts of a picture had not been read when it was taken: see Look.
type Ages struct {
	LocksAge  Seconds `json:"locks_age_s,omitempty"` // of the locks that no session waits for
	LeasesAge Seconds `json:"leases_age_s,omitempty"`
}

// OlderLocks says how old the list of locks is, if it is older than the picture.
func (a Ages) OlderLocks() string {
	if a.LocksAge < 1 {
		return ""
	}
	return fmt.Sprintf("Locks that no session waits for were looked for %s ago; new ones since then aren't listed yet.", a.LocksAge)
}

// OlderLeases says how old the list of leases is, if it is older than the picture.
func (a Ages) OlderLeases() string {
	if a.LeasesAge < 1 {
		return ""
	}
	return fmt.Sprintf("Leases are shown as they were %s ago.", a.LeasesAge)
}

// MariaDB reports whether the server is MariaDB.
func (p *Picture) MariaDB() bool { return rawsql.EngineOf(p.Version) == rawsql.MariaDB }

// Kind is what a row stands for.
type Kind string

// The kinds of rows.
const (
	Named    Kind = "lock"      // of a named key
	Hashed   Kind = "slot"      // one of the 65,536 that hashed keys share
	LeaseRow Kind = "lease"     // of a lease, a reader or a permit
	Queue    Kind = "queue"     // of a lease's waiters with Fair
	Once     Kind = "once"      // of a key of Once
	Job      Kind = "job"       // of a job
	Table    Kind = "table"     // a table itself, that DDL changes or waits for
	Between  Kind = "gap"       // between two rows of lockstep, where no row can be inserted
	Other    Kind = "other row" // of a table that is not lockstep's
)

// Row is what sessions lock and wait for.
type Row struct {
	Kind  Kind   `json:"kind"`
	Key   string `json:"key,omitempty"`   // the name, of a gap the one behind it; empty for a slot and for other rows
	Slot  int64  `json:"slot"`            // of a hashed key, or which row of a lease
	Table string `json:"table,omitempty"` // a table, that of a gap, and of other rows the index
}

// Shown writes a key for people, so that no two look alike, and none looks like anything else: as a Go
// string, in quotes, if it has spaces, backslashes or what can't be seen, or begins with a quote.
func Shown(key string) string {
	plain := func(r rune) bool { return unicode.IsPrint(r) && r != ' ' && r != '\\' }
	if utf8.ValidString(key) && !strings.HasPrefix(key, `"`) && !strings.ContainsFunc(key, func(r rune) bool { return !plain(r) }) {
		return key
	}
	return strconv.Quote(key)
}

// String names the row for people.
func (r Row) String() string {
	switch r.Kind {
	case Hashed:
		return fmt.Sprintf("slot %d", r.Slot)
	case Table:
		return "the table " + r.Table
	case Between:
		switch {
		case r.Key == "":
			return "the end of " + r.Table
		case r.Table == "lockstep_centers": // a slot
			return "the gap before " + r.Key + " in " + r.Table
		}
		return "the gap before " + Shown(r.Key) + " in " + r.Table
	case Other:
		return "a row of " + r.Table
	case Named:
		return Shown(r.Key)
	}
	return string(r.Kind) + " " + Shown(r.Key)
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
	Waiters Count     `json:"waiters"`
	// Changing: the row was granted anew while the look read it. Without a session it has no holder
	// at the moment, and Owner had it last.
	Changing bool `json:"changing,omitempty"`
	// Detached: the transaction has no session, since XA PREPARE has taken it off. It ends by XA COMMIT
	// or XA ROLLBACK only.
	Detached bool `json:"detached,omitempty"`
	// Unsure: this session or another one holds it. MariaDB can't tell transactions apart that have
	// written nothing, and none can be where the list of transactions is not known.
	Unsure bool `json:"unsure,omitempty"`
	// Before is the token of the grant before, if it is known.
	Before uint64 `json:"token_before,omitempty"`
	// Keys are those of the keys that the caller has named which fall on this slot: a slot
	// doesn't know its keys.
	Keys []string `json:"keys,omitempty"`
}

// How says how the row is locked, for people.
func (l Lock) How() string {
	switch {
	case l.Changing:
		return string(l.Mode) + ", changing"
	case l.Detached:
		return string(l.Mode) + ", prepared"
	case l.Unsure:
		return string(l.Mode) + ", perhaps"
	}
	return string(l.Mode)
}

// Number writes a session, or nothing for none.
func Number(session uint64) string {
	if session == 0 {
		return ""
	}
	return strconv.FormatUint(session, 10)
}

// Lease is a lease, a reader or a permit that is held, or the first waiter of a queue, or a writer that
// waits for readers.
type Lease struct {
	Key     string    `json:"key"`
	Kind    string    `json:"kind"` // exclusive, reader, permit, waiter
	Slot    int64     `json:"slot"`
	Owner   string    `json:"owner"`
	Label   string    `json:"label"` // what the owner tells of itself: by default host and process
	Token   uint64    `json:"token,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Held    Seconds   `json:"held_s"`
	TTL     Seconds   `json:"ttl_s"`
	Left    Seconds   `json:"left_s"`    // until it ends unless it is renewed
	Renewed Seconds   `json:"renewed_s"` // how long ago; unknown if it isn't renewed by design
	Holders int       `json:"holders"`   // of the same owner
	Asked   string    `json:"asked,omitempty"`
	AskedAt time.Time `json:"asked_at,omitzero"`
	Leads   bool      `json:"leads,omitempty"`   // it is the term of an election
	Session uint64    `json:"session,omitempty"` // of the first waiter of a queue
	Waiters Count     `json:"waiters"`           // in the queue of Fair; others look again and again, and can't be seen
}

// Late tells whether the holder has not renewed the lease for longer than holders do: before the end
// of its MaxLifetime, which the server doesn't know, a live one doesn't either.
func (l Lease) Late() bool { return l.Kind != waiter && l.Renewed > l.TTL*2/3 }

// Renewal says when the lease was renewed, and whether it is late, or nothing if it isn't renewed.
func (l Lease) Renewal() string {
	switch {
	case !l.Renewed.Known():
		return ""
	case l.Late():
		return l.Renewed.String() + " ago, late"
	}
	return l.Renewed.String() + " ago"
}

// Kept tells whether the lease was released, and nobody holds it: see lease.HoldAtLeast.
func (l Lease) Kept() bool { return strings.HasPrefix(l.Owner, released) }

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
	Changing bool     `json:"changing,omitempty"` // the row was granted anew while the look read it
	Detached bool     `json:"detached,omitempty"` // a transaction without a session holds the row, too
	Queued   bool     `json:"queued,omitempty"`   // the blockers wait for it themselves, ahead of this session
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
	// Statement is what it executes, or the last that it has executed, if the server tells: by its
	// name if it is one of lockstep's ("lockstep LockNamed"), behind its name if it was made by sqlc.
	Statement string `json:"statement,omitempty"`
	Last      bool   `json:"last,omitempty"` // the statement has ended
}

// Age says for how long its transaction is open, "-" if that isn't known, and nothing if it has none.
func (s Session) Age() string {
	if !s.InTx {
		return ""
	}
	return s.TxAge.String()
}

// Idle tells whether the session executes nothing.
func (s Session) Idle() bool { return s.Command == "Sleep" }

// Who names the session's user and host, if they are known.
func (s Session) Who() string {
	if s.User == "" {
		return ""
	}
	return s.User + "@" + s.Host
}

// Doing says what the session does, in a few words.
func (s Session) Doing() string {
	switch {
	case s.Command == "":
		return ""
	case s.Idle():
		text := "idle"
		if s.For.Known() {
			text += " " + s.For.String()
		}
		if s.Statement != "" {
			text += ", last: " + s.Statement
		}
		return text
	}
	if strings.HasPrefix(s.State, "Waiting for ") { // not for a row: for a table, or in a queue
		return strings.TrimPrefix(s.Statement+", "+strings.ToLower(s.State), ", ")
	}
	return s.Statement
}

// Gap is what could not be seen, and how it could.
type Gap struct {
	What string `json:"what"`
	Fix  string `json:"fix"`
	// Hides: there may be locks, leases, waits, jobs or keys of Once that are not shown.
	Hides bool `json:"hides,omitempty"`
	// Denied: this user lacks a privilege.
	Denied bool `json:"denied,omitempty"`
}

// Hiding returns the gaps behind which there may be what is not shown.
func (p *Picture) Hiding() []Gap { return p.gapsThat(func(g Gap) bool { return g.Hides }) }

// GapsOf returns the gaps of a table.
func (p *Picture) GapsOf(table string) []Gap {
	return p.gapsThat(func(g Gap) bool { return strings.HasPrefix(g.What, table+" ") })
}

// gapsThat returns some gaps, which are an empty list in JSON if there are none.
func (p *Picture) gapsThat(are func(Gap) bool) []Gap {
	some := []Gap{}
	for _, g := range p.Gaps {
		if are(g) {
			some = append(some, g)
		}
	}
	return some
}

// String is a sentence.
func (g Gap) String() string { return g.What + ": " + g.Fix }
