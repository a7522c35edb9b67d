package site

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/proxy"
)

// Link is a way to a database server and a Redis: straight, or through proxies that
// put a distance between. Through its proxies everything can be counted.
type Link struct {
	RoundTrip time.Duration

	server *Server
	redis  *Redis // nil where there is none
	sql    *proxy.Proxy
	cache  *proxy.Proxy
}

// NewLink starts the proxies of a link. Without a round trip they only count.
func NewLink(server *Server, redis *Redis, roundTrip time.Duration) (*Link, error) {
	l := &Link{RoundTrip: roundTrip, server: server, redis: redis}
	var err error
	if l.sql, err = proxy.Start(server.config.Net, server.config.Addr, roundTrip, proxy.MySQL); err != nil {
		return nil, err
	}
	if redis == nil {
		return l, nil
	}
	if l.cache, err = proxy.Start("tcp", redis.Addr, roundTrip, proxy.Redis); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Name is loopback, or the time of a round trip.
func (l *Link) Name() string { return LinkName(l.RoundTrip) }

// LinkName is the name of a link with a round trip.
func LinkName(roundTrip time.Duration) string {
	if roundTrip == 0 {
		return "loopback"
	}
	return strconv.FormatFloat(float64(roundTrip)/float64(time.Millisecond), 'g', -1, 64) + " ms"
}

// ParseLink reads loopback, or a round trip.
func ParseLink(name string) (time.Duration, error) {
	if name == "loopback" {
		return 0, nil
	}
	d, err := time.ParseDuration(strings.ReplaceAll(name, " ", ""))
	if err == nil && d <= 0 {
		err = fmt.Errorf("%v is no round trip", d)
	}
	return d, err
}

// Place is where contenders work on a database: straight where there is no distance.
func (l *Link) Place(d *Database, conns int, keys int64) contender.Place {
	at := l.Counted(d, conns, keys)
	if l.RoundTrip == 0 {
		config := l.server.config.Clone()
		config.DBName = d.Name
		at.DSN = config.FormatDSN()
		if l.redis != nil {
			at.Redis = l.redis.Addr
		}
	}
	return at
}

// Counted is Place, through the proxies in any case.
func (l *Link) Counted(d *Database, conns int, keys int64) contender.Place {
	config := l.server.config.Clone()
	config.DBName = d.Name
	config.Net, config.Addr = "tcp", l.sql.Addr()
	at := contender.Place{Engine: l.server.Engine, DSN: config.FormatDSN(), Conns: conns, Keys: keys}
	if l.cache != nil {
		at.Redis = l.cache.Addr()
	}
	return at
}

// Counts returns what has gone through the proxies of both servers.
func (l *Link) Counts() proxy.Counts {
	counts := l.sql.Counts()
	if l.cache != nil {
		counts = counts.Plus(l.cache.Counts())
	}
	return counts
}

// Ping measures round trips of the link, in microseconds.
func (l *Link) Ping(ctx context.Context, d *Database, n int) (took []float64, err error) {
	db, err := sql.Open("mysql", l.Place(d, 1, 0).DSN)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for range n {
		began := time.Now()
		if err := conn.PingContext(ctx); err != nil {
			return nil, err
		}
		took = append(took, float64(time.Since(began))/float64(time.Microsecond))
	}
	return took, nil
}

// Close stops the proxies.
func (l *Link) Close() error {
	err := l.sql.Close()
	if l.cache != nil {
		err = errors.Join(err, l.cache.Close())
	}
	return err
}
