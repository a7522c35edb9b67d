// Package cluster shows what locks and leases are worth on several servers: on the
// primaries of a Galera cluster and of a Group Replication, and over a fail-over to a
// replica. Its tests have the
// build tag cluster: make test-cluster.
package cluster
