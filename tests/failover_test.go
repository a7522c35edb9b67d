package tests

import (
	"context"
	"crypto/rand"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestFailoverBreaksALease proves what a quorum is for: a lease of one database, for which another
// stands in that knows nothing of it, is held by two when a client can't reach the first.
func TestFailoverBreaksALease(t *testing.T) {
	t.Parallel()
	server := testdb.Shared(t, testdb.Engines()[0])
	first, second := server.OpenLeases(t), server.OpenLeases(t)
	standby, err := mysql.NewConnector(second.Config())
	fatal(t, err)
	pair := func(primary driver.Connector) driver.Connector { return failover{primary, standby} }
	key := txlock.Named("failover:" + rand.Text())
	held, err := faultManager(t, faultPool(t, first, network{}, pair)).Acquire(t.Context(), key)
	fatal(t, err)
	way := newNetwork(t, first)
	fatal(t, way.Down())
	other, err := faultManager(t, faultPool(t, first, way, pair)).Acquire(t.Context(), key)
	fatal(t, err)
	if err := errors.Join(held.Err(), other.Err()); err != nil {
		t.Errorf("one of two holders knows that it is not alone: %v", err)
	}
}

// failover connects to the second database when the first can't be reached.
type failover struct {
	driver.Connector
	second driver.Connector
}

func (f failover) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.Connector.Connect(ctx)
	if err != nil {
		conn, err = f.second.Connect(ctx)
	}
	return conn, err
}
