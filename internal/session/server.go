package session

import (
	"database/sql"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// Server is what a connection knows about its server.
type Server struct {
	rawsql.Engine
	// SnapshotIsolation: the server can refuse the lock of a row that has
	// changed since the transaction's snapshot (innodb_snapshot_isolation).
	SnapshotIsolation bool
	// RollbackOnTimeout: a lock wait timeout rolls back the whole transaction.
	RollbackOnTimeout bool
	// Session is CONNECTION_ID().
	Session uint64
	// Name identifies the database: host name, port and database name.
	Name string
	// Isolation is the level of the session when it was asked.
	Isolation sql.IsolationLevel
}

// NewServer makes a Server from the facts of a session.
func NewServer(f Facts) Server {
	engine := rawsql.EngineOf(f.Version)
	return Server{
		Engine:            engine,
		SnapshotIsolation: engine.RefusesStale(f.Version),
		RollbackOnTimeout: f.RollbackOnTimeout,
		Session:           f.ID,
		Name:              f.Name,
		Isolation:         f.Isolation,
	}
}
