//go:build cluster && proxies

package cluster

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/tests/proxies"
	"github.com/dca00107/lockstep/txlock"
)

// TestRouter has clients behind MySQL Router, which follows the primary of a Group Replication by
// its cache of metadata. What TestSinglePrimary promises holds.
func TestRouter(t *testing.T) {
	if slices.Contains(testdb.Engines(), testdb.MySQL) {
		singlePrimary(t, "PROXY_DURATION", behindRouter)
	}
}

func behindRouter(t *testing.T, db *testdb.DB, nodes []*testdb.Server) (lead func(*mysql.Config)) {
	t.Helper()
	group := describe(t, db, nodes)
	start := func(route func(*proxies.Router) string) *proxies.Router {
		r := proxies.NewRouter(t)
		r.Cluster(t, group, nodes, "router", "secret")
		r.Start(t, route(r), cache)
		return r
	}
	splits(t, db, start(func(r *proxies.Router) string {
		return "destinations = metadata-cache://lockstep/?role=PRIMARY_AND_SECONDARY\nrouting_strategy = round-robin\naccess_mode = auto" + r.Sharing(t)
	}))
	r := start(func(*proxies.Router) string {
		return "destinations = metadata-cache://lockstep/?role=PRIMARY\nrouting_strategy = first-available"
	})
	return func(client *mysql.Config) { client.Addr = r.Addr }
}

// splits proves what a router does that sends reads to secondaries: those outside of transactions go
// there, a lock keeps its transaction on the primary, and Check finds it.
func splits(t *testing.T, db *testdb.DB, r *proxies.Router) {
	t.Helper()
	pool := openGuarded(t, db.Config(func(c *mysql.Config) { c.Addr, c.TLSConfig = r.Addr, "skip-verify" }))
	load.Connected(t, pool) // it has read the metadata
	const where = "SELECT @@port"
	var outside, inside int
	check(t, pool.QueryRowContext(t.Context(), where).Scan(&outside))
	err := locksqlc.Run(t.Context(), pool, []txlock.Key{txlock.Named("splits")}, func(tx *sql.Tx) error {
		return tx.QueryRow(where).Scan(&inside)
	})
	check(t, err)
	var primary int
	check(t, db.Admin().QueryRow(where).Scan(&primary))
	testdb.ErrorIf(t, outside == primary || inside != primary,
		"reads are on port %d outside of a transaction and %d in one, the primary has %d", outside, inside, primary)
	if err := schema.Check(t.Context(), pool); !errors.Is(err, schema.ErrProxy) {
		t.Errorf("Check: %v, want ErrProxy", err)
	} else {
		t.Logf("Check: %v", err)
	}
}

// cache is the section of the router's cache.
const cache = `[metadata_cache:lockstep]
cluster_type = gr
router_id = 1
user = router
metadata_cluster = lockstep
ttl = 0.5`

// describe writes what MySQL Shell would: as much of the metadata of an InnoDB Cluster as the router reads. It returns the name of the
// group.
func describe(t *testing.T, db *testdb.DB, nodes []*testdb.Server) (group string) {
	t.Helper()
	for _, statement := range []string{
		"CREATE DATABASE mysql_innodb_cluster_metadata",
		"CREATE VIEW mysql_innodb_cluster_metadata.schema_version (major, minor, patch) AS SELECT 2, 1, 0",
		"CREATE TABLE mysql_innodb_cluster_metadata.v2_gr_clusters (cluster_id CHAR(36) PRIMARY KEY, cluster_name VARCHAR(40), group_name CHAR(36))",
		"CREATE TABLE mysql_innodb_cluster_metadata.v2_instances (instance_id INT PRIMARY KEY, cluster_id CHAR(36), label VARCHAR(40), mysql_server_uuid CHAR(36), address VARCHAR(40), endpoint VARCHAR(40), xendpoint VARCHAR(40), attributes JSON)",
		"CREATE TABLE mysql_innodb_cluster_metadata.v2_cs_members (cluster_id CHAR(36) PRIMARY KEY, clusterset_id CHAR(36))",
		"CREATE VIEW mysql_innodb_cluster_metadata.v2_this_instance AS SELECT *, 'gr' AS cluster_type FROM mysql_innodb_cluster_metadata.v2_gr_clusters",
		"INSERT INTO mysql_innodb_cluster_metadata.v2_gr_clusters VALUES (@@group_replication_group_name, 'lockstep', @@group_replication_group_name)",
		"CREATE TABLE mysql_innodb_cluster_metadata.v2_routers (router_id INT PRIMARY KEY, router_name VARCHAR(40), address VARCHAR(40), product_name VARCHAR(40), version VARCHAR(12), last_check_in DATETIME, attributes JSON, options JSON)",
		"INSERT INTO mysql_innodb_cluster_metadata.v2_routers VALUES (1, 'lockstep', '127.0.0.1', 'MySQL Router', '', NULL, '{}', '{}')",
		"CREATE USER router@'%' IDENTIFIED BY 'secret'",
		"GRANT SELECT ON *.* TO router@'%'",
		"GRANT UPDATE ON mysql_innodb_cluster_metadata.v2_routers TO router@'%'",
	} {
		db.Exec(t, statement)
	}
	for i, node := range nodes {
		var uuid string
		check(t, db.At(t, node).Admin().QueryRow("SELECT @@server_uuid").Scan(&uuid))
		db.Exec(t, fmt.Sprintf(`INSERT INTO mysql_innodb_cluster_metadata.v2_instances
			SELECT %d, cluster_id, '%[2]s', '%s', '%[2]s', '%[2]s', '', '{}' FROM mysql_innodb_cluster_metadata.v2_gr_clusters`, i, node.Config().Addr, uuid))
	}
	check(t, db.Admin().QueryRow("SELECT @@group_replication_group_name").Scan(&group))
	for _, node := range nodes {
		caughtUp(t, db.At(t, node))
	}
	return group
}
