// Package scale measures what one server carries, with 1 to 64 processes, and simulates up to
// 10,000 of them on the store of leases in memory, with the costs that it has measured. It
// writes the tables of docs/scale.md:
//
//	make scale
package scale
