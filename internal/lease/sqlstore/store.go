package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
	server "github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

var queries = gen.New()

// inner is what package txlock does for this one.
var inner = txlock.Internal(bridge.Pass{})

// Store has the leases of one pool, for one manager.
type Store struct {
	session
	pool      *prepared
	renewConn *renewConn // the connection for renewals
	clock     serverClock

	takes, releases batcher // where many calls meet
}

var _ store.Store = (*Store)(nil)

// New returns the store of a pool. It sends nothing.
func New(db *sql.DB) *Store {
	s := &Store{renewConn: &renewConn{program: db}}
	s.pool = &prepared{DB: db, renewConn: s.renewConn, s: s, inline: rawsql.TakesText(db), stmts: make(map[string]*sql.Stmt)}
	s.session = session{db: s.pool, s: s}
	s.takes.send, s.releases.send = s.many(rawsql.AcquireMany), s.many(rawsql.ReleaseMany)
	return s
}

// Now reads this machine's clock.
func (*Store) Now() store.Instant { return now() }

// Ready reads the server's clock if that was not done within the last minute.
func (s *Store) Ready(ctx context.Context) error { return s.clock.fresh(ctx, s.pool) }

// ReadClock reads the server's clock.
func (s *Store) ReadClock(ctx context.Context) error { return s.clock.read(ctx, s.pool) }

// lacks returns schema.ErrEngine where leases can only be held exclusively.
func (s *Store) lacks() error {
	e := s.clock.engine()
	return server.Lacks(e, e.Lacks.Leases)
}

// SharesLeases returns schema.ErrMultiPrimary on a cluster with several primaries, and
// schema.ErrEngine where no row can be locked shared.
func (s *Store) SharesLeases(ctx context.Context) error {
	if err := errors.Join(s.Ready(ctx), s.lacks()); err != nil {
		return err
	}
	return schema.CheckCluster(ctx, s.pool.DB)
}

// Identity returns the pool.
func (s *Store) Identity() any { return s.pool.DB }

// Reserve opens the connection for renewals if the program can use its pool up.
func (s *Store) Reserve(ctx context.Context) error { return s.renewConn.reserve(ctx) }

// Settle returns the connection for renewals to the pool if it isn't needed.
func (s *Store) Settle(idle func() bool) { s.renewConn.settle(idle) }

// Full reports whether the pool has no connection left.
func (s *Store) Full() bool { return full(s.pool.DB) }

// Beside returns what sends statements beside the program's transactions.
func (s *Store) Beside() store.Session {
	switch db := s.renewConn.beside(); db {
	case nil:
		return nil
	case s.pool.DB:
		return s
	default:
		return session{db: beside{s.pool.text(db), db}, s: s}
	}
}

// beside is a sql.DB that is not the program's.
type beside struct {
	*rawsql.Text
	db *sql.DB
}

func (b beside) textual() *sql.DB { return b.db }

// RenewMany renews many rows, on the connection for renewals. If a statement fails, the
// connection is closed, because its state is not known.
func (s *Store) RenewMany(ctx context.Context, claims []store.Claim) (map[store.Row]store.Standing, []store.Question, error) {
	conn, err := s.renewConn.conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	renew := session{db: conn, s: s}.RenewMany
	if s.clock.engine().OneByOne {
		renew = session{db: alone{conn, conn, s}, s: s}.renewEach
	} else {
		_, err = conn.ExecContext(ctx, rawsql.ReadCommitted)
	}
	if err == nil {
		var found map[store.Row]store.Standing
		var questions []store.Question
		if found, questions, err = renew(ctx, claims); err == nil {
			return found, questions, conn.Close()
		}
	}
	discard(conn)
	return nil, nil, err
}

// Join joins the caller's transaction.
func (s *Store) Join(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) (store.Joined, error) {
	scope, err := txlock.Join(ctx, tx, options...)
	return joined{scope, s}, err
}

// joined is the caller's transaction.
type joined struct {
	scope *txlock.Scope
	s     *Store
}

// Include sends statements in the transaction, as txlock.Scope does.
func (j joined) Include(ctx context.Context, verb string, key txlock.Key, send func(ctx context.Context, in *store.In) error) error {
	return inner.Include(ctx, j.scope, verb, key, func(ctx context.Context, included *bridge.Included) error {
		in := store.In{
			Session: session{db: included.Tx, s: j.s, callers: true}, Reading: included.Reading,
			Snapshot: included.Snapshot, Fenced: included.Fenced, ID: included.Session,
		}
		err := send(ctx, &in)
		included.Fence = in.Fence
		return err
	})
}

// Epoch reads the identifier and the age of the database's epoch.
func (s *Store) Epoch(ctx context.Context) (id string, age time.Duration, err error) {
	row, err := queries.ReadEpoch(ctx, s.pool)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil
	}
	return string(row.Owner), micros(row.AgeUs), err
}

// BeginEpoch begins an epoch if there is none.
func (s *Store) BeginEpoch(ctx context.Context, id string, age time.Duration) error {
	return queries.BeginEpoch(ctx, s.pool, gen.BeginEpochParams{ID: []byte(id), AgeUs: age.Microseconds()})
}

// Close closes the connection for renewals and the prepared statements, after the last
// statement for several leases.
func (s *Store) Close() error {
	s.takes.sending.Wait()
	s.releases.sending.Wait()
	return errors.Join(s.renewConn.close(), s.pool.close())
}
