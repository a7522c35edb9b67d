package contender

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// getLock is the server's lock of a session. Its names are the server's, so they begin
// with the database's.
func getLock() Maker {
	return Maker{
		Name: "GET_LOCK", About: "SELECT GET_LOCK and SELECT RELEASE_LOCK around the transaction, on its connection",
		Many: true,
		Transactor: func(ctx context.Context, at Place) (Transactor, error) {
			return openSessions(ctx, at)
		},
		Leaser: func(ctx context.Context, at Place) (Leaser, error) {
			return openSessions(ctx, at)
		},
	}
}

type sessions struct {
	*sql.DB
	prefix string
}

func openSessions(ctx context.Context, at Place) (*sessions, error) {
	config, err := mysql.ParseDSN(at.DSN)
	if err != nil {
		return nil, err
	}
	db, err := OpenPlain(ctx, at)
	if err != nil {
		return nil, err
	}
	return &sessions{DB: db, prefix: config.DBName}, nil
}

// Transact begins again where two sessions wait for each other.
func (s *sessions) Transact(ctx context.Context, keys []int64, work func(tx Tx) error) error {
	for {
		err := s.once(ctx, keys, work)
		var refused *mysql.MySQLError
		deadlock := errors.As(err, &refused) && refused.Number == 3058
		if !deadlock && !again(err) || ctx.Err() != nil {
			return err
		}
	}
}

func (s *sessions) once(ctx context.Context, keys []int64, work func(tx Tx) error) (err error) {
	conn, err := s.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, key := range keys {
		l := &session{conn: conn, name: s.name(key)}
		if err := l.lock(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.unlock(ctx)) }()
	}
	err = Transact(ctx, conn, nil, func(tx *sql.Tx) error { return work(sqlTx{tx}) })
	freeing(ctx)
	return err
}

func (s *sessions) name(key int64) string { return s.prefix + ":" + KeyName(key) }

func (s *sessions) Acquire(ctx context.Context, key int64) (Lease, error) {
	conn, err := s.Conn(ctx)
	if err != nil {
		return nil, err
	}
	l := &session{conn: conn, name: s.name(key)}
	if err := l.lock(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return l, nil
}

// session has a lock of a connection.
type session struct {
	conn *sql.Conn
	name string
}

func (l *session) lock(ctx context.Context) error { return l.is(ctx, "SELECT GET_LOCK(?, 50)") }

func (l *session) unlock(ctx context.Context) error { return l.is(ctx, "SELECT RELEASE_LOCK(?)") }

// is sends a statement whose answer is 1 where it has succeeded.
func (l *session) is(ctx context.Context, statement string) error {
	var done sql.NullInt64
	if err := l.conn.QueryRowContext(ctx, statement, l.name).Scan(&done); err != nil {
		return err
	}
	if done.Int64 != 1 {
		return fmt.Errorf("%s: answer %v", statement, done)
	}
	return nil
}

// Renew has nothing to do: the lock lasts as long as the connection.
func (*session) Renew(context.Context) error { return errors.ErrUnsupported }

func (l *session) Release(ctx context.Context) error {
	return errors.Join(l.unlock(ctx), l.conn.Close())
}
