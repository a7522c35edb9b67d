package session

import (
	"fmt"

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
}

// NewServer makes a Server from the facts of a session.
func NewServer(f Facts) Server {
	engine := rawsql.EngineOf(f.Version)
	return Server{
		Engine:            engine,
		SnapshotIsolation: engine == rawsql.MariaDB && hasSnapshotIsolation(f.Version),
		RollbackOnTimeout: f.RollbackOnTimeout,
		Session:           f.ID,
		Name:              f.Name,
	}
}

// hasSnapshotIsolation reports whether a release of MariaDB knows the variable
// innodb_snapshot_isolation, which came with the maintenance releases of May 2024
// (MDEV-35124 and the release notes of the versions below).
func hasSnapshotIsolation(version string) bool {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return false
	}
	since, maintained := map[[2]int]int{
		{10, 6}: 18, {10, 11}: 8, {11, 0}: 6, {11, 1}: 5, {11, 2}: 4, {11, 4}: 2,
	}[[2]int{major, minor}]
	if maintained {
		return patch >= since
	}
	return major > 11 || major == 11 && minor > 4
}
