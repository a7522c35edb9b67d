// Package cluster shows what locks and leases are worth on several servers: on the
// primaries of a Galera cluster and of a Group Replication, on TiDB servers over one store,
// and over a fail-over to a replica. Its tests have the
// build tag cluster: make test-cluster. On TiDB some run, by make test ENGINES=tidb ONLY=tidb.
package cluster
