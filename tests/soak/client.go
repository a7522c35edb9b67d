package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

const (
	ttl        = 10 * time.Second
	renewEvery = time.Second
	// retention is how long rows are kept that nobody uses; each minute they are removed.
	retention = 2 * time.Minute
	cleanings = time.Minute
	// tenYears is for how long GORM keeps prepared statements: with any other time it starts
	// a goroutine that never ends.
	tenYears = 10 * 365 * 24 * time.Hour
)

// client is what a process of an application has. The first of a site interpolates
// arguments, and closes connections that are idle; the other prepares statements, and
// closes connections that are old.
type client struct {
	*site
	number int
	pools  []*sql.DB
	pool   *sql.DB
	plain  *sql.DB
	gorm   *gorm.DB
	leases *lease.Manager
	spread []*lease.Manager // of the nodes
	quorum *quorum.Manager
	jobs   *job.Jobs

	running sync.WaitGroup
}

func (s *site) newClient(ctx context.Context, number int) (c *client, err error) {
	c = &client{site: s, number: number}
	log := txlock.Observe(txlock.SlogObserver(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if c.pool, err = c.openPool(s.database(0), 12, log); err != nil {
		return c, err
	}
	c.plain = c.keep(sql.OpenDB(must(mysql.NewConnector(c.config(s.database(0))))), 4)
	forGorm, err := c.openPool(s.database(0), 4)
	if err != nil {
		return c, err
	}
	c.gorm, err = gorm.Open(gormmysql.New(gormmysql.Config{Conn: forGorm, SkipInitializeWithVersion: true, DontSupportForShareClause: s.engine == testdb.MariaDB}),
		&gorm.Config{Logger: logger.Discard, PrepareStmt: number == 1, PrepareStmtTTL: tenYears})
	if err != nil {
		return c, err
	}
	if err := c.gorm.Use(lockgorm.New()); err != nil {
		return c, err
	}
	terms := []lease.ManagerOption{lease.TTL(ttl), lease.RenewEvery(renewEvery), lease.PurgeEvery(cleanings, retention)}
	if c.leases, err = lease.NewManager(c.pool, terms...); err != nil {
		return c, err
	}
	if c.jobs, err = job.New(c.pool, c.leases, job.InstanceName(fmt.Sprint("client ", number))); err != nil {
		return c, err
	}
	for i := range nodes {
		db, err := c.openPool(s.database(i+1), 4)
		if err != nil {
			return c, err
		}
		m, err := lease.NewManager(db, terms...)
		if err != nil {
			return c, err
		}
		c.spread = append(c.spread, m)
	}
	if c.quorum, err = quorum.New(c.spread, quorum.NodeTimeout(ttl/3)); err != nil {
		return c, err
	}
	if number == 0 {
		return c, c.quorum.Install(ctx)
	}
	return c, nil
}

// config is that of the client's pools.
func (c *client) config(name string) *mysql.Config {
	cfg := c.site.config(name)
	cfg.InterpolateParams = c.number == 0
	return cfg
}

// openPool opens a guarded pool.
func (c *client) openPool(name string, most int, options ...txlock.PoolOption) (*sql.DB, error) {
	db, err := locksqlc.Open(c.config(name).FormatDSN(), options...)
	if err != nil {
		return nil, err
	}
	return c.keep(db, most), nil
}

// keep bounds a pool, and closes it with the client.
func (c *client) keep(db *sql.DB, most int) *sql.DB {
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	if c.number == 0 {
		db.SetConnMaxIdleTime(30 * time.Second)
	} else {
		db.SetConnMaxLifetime(3 * time.Minute)
	}
	c.pools = append(c.pools, db)
	return db
}

// close ends all that was begun.
func (c *client) close(ctx context.Context) (err error) {
	if c.jobs != nil {
		err = errors.Join(err, c.jobs.Close(ctx))
	}
	c.running.Wait()
	if c.quorum != nil {
		err = errors.Join(err, c.quorum.Close(ctx))
	}
	for _, m := range append(c.spread, c.leases) {
		if m != nil {
			err = errors.Join(err, m.Close(ctx))
		}
	}
	for _, db := range c.pools {
		err = errors.Join(err, db.Close())
	}
	return err
}

// must is for what can't fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
