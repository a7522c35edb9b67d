// Package ops gathers what operators want to see: who holds which lock or lease, since
// when and from where, who waits for whom, and what is wrong with the setup. It reads only,
// waits for nobody, and answers what it can where a privilege is missing.
//
// [Room.Look] takes a [Picture] of all that is held and waited for, and [Picture.Tree]
// orders it by who waits for whom. The types have JSON names, which are documented in
// cmd/lockstep/json.md and stay.
package ops

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
)

var queries = gen.New()

// Room looks at one database. It may be used by several goroutines, which look one after
// the other. It remembers what a look has cost, so that those who look again and again
// don't burden the server: see Look.
type Room struct {
	db *sql.DB

	mu       sync.Mutex
	maria    bool // it is MariaDB, as the last look has found
	scanned  scan
	leased   leased
	recalled turn          // when rows were read for their pages
	known    map[Row]grant // what was held at the last look
	// programs are those of sessions at the last look: a session keeps its program.
	programs map[uint64]string
	blind    Gap // why they are not known
}

// New returns a Room for the database of the pool. It sends nothing yet. The pool should
// write arguments into the texts of statements (interpolateParams=true), which saves round
// trips. It stays the caller's.
func New(db *sql.DB) *Room { return &Room{db: db} }

// Look takes a picture. Of the keys, each hashed one is named with its slot.
//
// MariaDB lists only the locks that somebody waits for: to find the others, Look reads the
// tables of locks. That is done again only after 300 times of what it has taken, at most a
// minute, so that who looks every second hardly burdens the server: a look in between shows
// the locks that were found before and are still held, and those that somebody waits for.
//
// Leases have no such list either. Their table is read again only after half a millisecond for each of
// its rows, at most a minute: one of 2,000 rows each second, one of 20,000 every 10 seconds.
// [Picture] has the ages of both.
//
// Both servers tell a lock's row only while the row's page is in their memory. Where it isn't,
// Look reads the table, as rarely, and asks again; what stays unknown is a Gap.
//
// A server makes its list of transactions anew only when nobody has read it for 0.1 s: where others
// read it, Look tries again for two seconds. After that an old list isn't used, which is a Gap, and a
// lock of which only its row tells is unsure. MySQL has no list while a session executes a statement
// with a character that utf8mb3 lacks, an emoji for example: Look asks its performance schema then.
//
// It returns the errors of the driver and of the server. What is not allowed is a Gap and
// no error, unless it is SELECT on the tables of lockstep.
func (r *Room) Look(ctx context.Context, keys ...string) (*Picture, error) {
	return r.look(ctx, false, keys)
}

// Forget lets the next Look read all parts anew.
func (r *Room) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scanned, r.leased = scan{}, leased{}
}

// look is Look. It may try what this user may see although there is nothing to be seen.
func (r *Room) look(ctx context.Context, try bool, keys []string) (*Picture, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &look{Room: r, Picture: Picture{Sessions: make(map[uint64]Session)}, keys: bySlot(keys), try: try, changing: make(map[Row]grant), late: make(map[string]bool)}
	if err := l.take(ctx); err != nil {
		return nil, fault.Explain("read the locks", err)
	}
	return &l.Picture, nil
}

// look is one call of Look.
type look struct {
	*Room
	Picture
	try     bool
	grantee string
	// performance: the server's performance schema is on. Off, it has the same tables, without rows.
	performance bool
	keys        map[int64][]string

	seen     []rowLock       // locks that the server lists, granted and waited for
	unwaited bool            // seen lacks locks that are waited for
	exact    bool            // seen has all the locks on lockstep's rows
	faded    map[string]bool // the tables of which the server lists locks without their rows
	// changing are the rows that were granted anew while the look read them, with the last grant
	// that has committed.
	changing map[Row]grant
	late     map[string]bool // the tables that didn't answer in time
	open     map[uint64]*txn // the open transactions by their sessions, nil if unknown
	// detached are the ages of the open transactions without a session, by their numbers. Most are
	// prepared by XA; a server that has just started rolls others back.
	detached map[string]Seconds
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
	id, trx string // by which the server lists it
	// detached: its transaction has no session.
	detached bool
}

func (l *look) take(ctx context.Context) error {
	if err := l.facts(ctx); err != nil {
		return err
	}
	var held []Lock
	holders := func(ctx context.Context) (err error) {
		held, err = l.held(ctx)
		return err
	}
	for _, read := range []func(context.Context) error{l.catalog, l.recall, l.tableLocks, holders, l.leases, l.firstWaiters, l.recorders} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	l.assemble(held)
	l.dropStrangers()
	return l.describe(ctx)
}

// facts reads what the look depends on.
func (l *look) facts(ctx context.Context) error {
	if err := l.moment(ctx); err != nil {
		return err
	}
	l.maria = l.MariaDB()
	var database sql.NullString
	ask := func(performance string) error {
		return l.db.QueryRowContext(ctx, "SELECT DATABASE(), CURRENT_USER(), "+performance).Scan(&database, &l.User, &l.performance)
	}
	err := ask("@@performance_schema")
	if fault.Is(err, 1193) { // ER_UNKNOWN_SYSTEM_VARIABLE: MariaDB may be built without it
		err = ask("0")
	}
	if err != nil {
		return err
	}
	if l.Database = database.String; l.Database == "" {
		return ErrNoDatabase
	}
	l.grantee = Grantee(l.User)
	return nil
}

// moment begins the picture: its times count from now.
func (l *look) moment(ctx context.Context) error {
	facts, err := session.Ask(ctx, l.db)
	if err != nil {
		return err
	}
	if errors.Is(facts.Unfit, schema.ErrEngine) {
		return facts.Unfit // it would show no locks, whoever holds them
	}
	l.Taken, l.Version = time.UnixMicro(facts.ClockUs).UTC(), facts.Version
	return nil
}

// ErrNoDatabase is returned for a pool without a database.
var ErrNoDatabase = errors.New("no database is selected: name the one with lockstep's tables in the data source name")

// Grantee writes an account, as CURRENT_USER() tells it, as GRANT wants it.
func Grantee(account string) string {
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
