// Package store is the seam between the managers of leases and the server: it names by
// meaning what they ask of the server. Package sqlstore asks a database; a store in memory
// stands in for that in tests. The managers of package lease run unchanged on either.
//
// # The order of reading
//
//  1. store.go: [Store], what a manager asks; [Session], the statements, which may also be
//     sent in the caller's transaction; then what is sent and what is answered.
//  2. seen.go: what is seen of rows by who looks, and what holders are asked.
//  3. pool.go: how a pool brings a store of its own.
package store
