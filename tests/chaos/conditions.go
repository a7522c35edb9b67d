package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// Conditions are what happens to a server that goes on: others use up what it has, or change
// it. Each is looked at from outside, by a session of a client without the library, so that
// one which is not felt ends the run.

// faultLimit is how long it may take to make and to undo a condition, on a busy machine.
const faultLimit = time.Minute

// The errors by which a condition is felt, or known to be there or gone.
const (
	errTooManyConnections = 1040
	errColumnExists       = 1060
	errNoColumn           = 1091
	errTableFull          = 1114
	errLockWait           = 1205
	errReadOnly           = 1290
	errTooManyStatements  = 1461
)

// condition makes a fault of what a session of the administrator does and undoes, while the
// server is neither killed nor stopped. It is started again if it does not survive.
func condition(do func(s *site, ctx context.Context, admin *sql.Conn, f fault) error) func(*site, context.Context, fault) error {
	return serving(func(s *site, ctx context.Context, f fault) (err error) {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), faultLimit)
		defer cancel()
		admin, err := s.admin.Conn(limited)
		if err != nil {
			return err
		}
		defer func() { _ = admin.Close() }()
		// What waits for a lock of a table keeps everybody waiting who comes later.
		if _, err := admin.ExecContext(limited, "SET SESSION lock_wait_timeout = 1"); err != nil {
			return err
		}
		err = do(s, ctx, admin, f)
		if s.engine != testdb.TiDB && !s.server.Running() {
			s.feel(ended)
			return restart(s.server)
		}
		return err
	})
}

// insist sends a statement again until it succeeds, or its error says that it has done so before.
func insist(admin *sql.Conn, statement string, done ...uint16) error {
	ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	for {
		_, err := admin.ExecContext(ctx, statement)
		if slices.Contains(done, number(err)) {
			return nil
		}
		if err == nil || errors.Is(err, sql.ErrConnDone) || errors.Is(err, mysql.ErrInvalidConn) || ctx.Err() != nil {
			return err
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
}

// setting makes a condition of a global variable, which a look must feel, and ends it by one.
func setting(name, undo func(testdb.Engine) string, value, normal int, look func(s *site, ctx context.Context, f fault) error) func(*site, context.Context, fault) error {
	return condition(func(s *site, ctx context.Context, admin *sql.Conn, f fault) error {
		err := insist(admin, fmt.Sprintf("SET GLOBAL %s = %d", name(s.engine), value))
		if err == nil {
			err = look(s, ctx, f)
		}
		return errors.Join(err, insist(admin, fmt.Sprintf("SET GLOBAL %s = %d", undo(s.engine), normal)))
	})
}

// always is a name that is the same for both.
func always(name string) func(testdb.Engine) string {
	return func(testdb.Engine) string { return name }
}

// readOnly is what refuses writes, which read_only ends on both.
func readOnly(engine testdb.Engine) string {
	if engine == testdb.MySQL {
		return "super_read_only"
	}
	return "read_only"
}

// number is that of the server's error, 0 for none.
func number(err error) uint16 {
	var refused *mysql.MySQLError
	if errors.As(err, &refused) {
		return refused.Number
	}
	return 0
}

var errNone = errors.New("none")

// felt checks that an error is the one that a condition makes.
func (s *site) felt(kind string, err error, wanted uint16) error {
	if number(err) != wanted {
		return fmt.Errorf("error %d was expected, and it is %w", wanted, cmp.Or(err, errNone))
	}
	s.feel(kind)
	return nil
}

// stranger is a session of a client, without the library and its networks.
func (s *site) stranger(ctx context.Context) (*sql.Conn, func(), error) {
	connector, err := mysql.NewConnector(s.config())
	if err != nil {
		return nil, nil, err
	}
	pool := sql.OpenDB(connector)
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, pool.Close())
	}
	return conn, func() { _, _ = conn.Close(), pool.Close() }, nil
}

// reads lets nobody write.
func (s *site) reads(ctx context.Context, f fault) error {
	limited, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	conn, end, err := s.stranger(limited)
	if err != nil {
		return err
	}
	defer end()
	_, err = conn.ExecContext(limited, "INSERT INTO ddl VALUES (1)")
	f.lasting(ctx)
	return s.felt(f.kind, err, errReadOnly)
}

// crowded lets nobody connect: some sessions of the clients are ended, and strangers take
// their places.
func (s *site) crowded(ctx context.Context, f fault) error {
	limited, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	if err := s.killConnections(limited, f); err != nil {
		return err
	}
	for {
		_, end, err := s.stranger(limited)
		if err != nil {
			f.lasting(ctx)
			return s.felt(f.kind, err, errTooManyConnections)
		}
		defer end() // when all are here
	}
}

// unprepared lets nobody prepare a statement: some sessions are ended, which have theirs.
func (s *site) unprepared(ctx context.Context, f fault) error {
	limited, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	if err := s.killConnections(limited, f); err != nil {
		return err
	}
	conn, end, err := s.stranger(limited)
	if err != nil {
		return err
	}
	defer end()
	stmt, err := conn.PrepareContext(limited, "SELECT value FROM spots WHERE name = ?")
	if err == nil {
		defer func() { _ = stmt.Close() }()
	}
	f.lasting(ctx)
	return s.felt(f.kind, err, errTooManyStatements)
}

// killCommits keeps commits waiting for a moment, again and again, and interrupts half of
// those that wait.
func (s *site) killCommits(ctx context.Context, admin *sql.Conn, f fault) error {
	ctx, cancel := context.WithTimeout(ctx, f.lasts)
	defer cancel()
	r := rand.New(rand.NewPCG(f.choice, 0))
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(context.Background(), faultLimit)
		if _, err := admin.ExecContext(limited, "FLUSH TABLES WITH READ LOCK"); err == nil { // else others are too busy
			_ = sleep(ctx, s.ttl/20)
			s.killQueries(admin, r)
		}
		cancel()
		if err := insist(admin, "UNLOCK TABLES"); err != nil {
			return err
		}
		_ = sleep(ctx, s.ttl/20)
	}
	return nil
}

// killQueries interrupts half of the commits.
func (s *site) killQueries(admin *sql.Conn, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	ids, err := s.idsOf(ctx, admin, "user = '"+clientUser+"' AND info LIKE 'COMMIT%'")
	if err != nil {
		return
	}
	for _, id := range ids {
		if r.IntN(2) == 0 {
			if _, err := admin.ExecContext(ctx, fmt.Sprintf("KILL QUERY %d", id)); err == nil {
				s.feel("kill commits")
			}
		}
	}
}

// migrated are the tables of lockstep that clients use.
var migrated = []string{"lockstep_locks", "lockstep_leases", "lockstep_once", "lockstep_jobs"}

// migrate adds a column to a table of lockstep, in place or by a copy, which TiDB has not, installs
// lockstep once more, and drops the column.
func (s *site) migrate(ctx context.Context, admin *sql.Conn, f fault) error {
	alter := "ALTER TABLE " + migrated[f.choice%uint64(len(migrated))] + " %s COLUMN chaos_added INT NULL"
	how := ""
	if f.choice>>8%2 == 0 && s.engine != testdb.TiDB {
		how = ", ALGORITHM=COPY"
	}
	if err := insist(admin, fmt.Sprintf(alter, "ADD")+how, errColumnExists); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	err := schema.Install(limited, s.admin)
	for number(err) == errLockWait { // it waits for the rows of hashed keys, which a client that stands still may have
		err = schema.Install(limited, s.admin)
	}
	f.lasting(ctx)
	s.feel(f.kind)
	drop := "ALTER TABLE " + migrated[f.choice%uint64(len(migrated))] + " DROP COLUMN chaos_added"
	return errors.Join(err, insist(admin, drop+how, errNoColumn))
}
