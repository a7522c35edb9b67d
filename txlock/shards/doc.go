// Package shards spreads keys over several databases, where one server is too small: see
// docs/scale.md.
//
//	s, err := shards.New(map[string]*sql.DB{"a": a, "b": b, "c": c})
//	err = s.Install(ctx)
//
//	key := Orders.Key(42)
//	db, err := s.For(ctx, key)
//	err = locksqlc.Run(ctx, db, []txlock.Key{key}, func(tx *sql.Tx) error { ... })
//
// # Routing
//
// A key goes to the same shard in every process, whatever the order of the set, by
// rendezvous hashing of its text with the names of the shards: a shard that is added to n
// takes one key in n+1, and no other key moves. The formula is a stable format, which is
// written down in route.go with the same in SQL. [RouteBy] routes by a part of the key. Keys
// that are locked together are in one shard, or [Shards.For] returns [ErrSplit] before
// anything is sent.
//
// [Of] makes something for each shard: a lease.Manager, or a *gorm.DB.
//
// # A shard that is down
//
// Its keys are refused, and all others work. No key is ever sent to another shard: two
// processes that don't agree which shards are up would both hold its lock.
//
// # The set changes
//
// Two processes with different sets would take the lock of one key in two databases. So each
// database has a record of the set, a row of lockstep_once with the name of its shard, that
// [Shards.Install] writes at first. A process reads it every 5 seconds, and uses no shard whose
// record has another set or another name: [ErrSet]. That notices a set with a shard too many or
// too few, and databases that were exchanged or have other names: a database is in one set
// only.
//
// The set is changed by a program or a migration that knows both sets:
//
//  1. [Begin] makes all processes refuse the keys that move ([ErrMoving]), and returns when
//     none of them is held any more. All other keys work.
//  2. Move the data of these keys, if they are in the same databases. Restart the processes
//     with the new set, one after the other: those with the old set and those with the
//     new one run beside each other.
//  3. [Finish] opens the keys that have moved. A process that still has the old set is
//     refused.
//
// What a key's old database knows of it stays there. A key of Once that has moved is new, and
// its work would be done again; so would a tick. The version of a key that has moved begins at
// 0 again, as that of a key that was never locked. So move the rows of these keys, too: those
// of lockstep_once, lockstep_jobs and lockstep_locks. Versions of a hashed family can't be
// moved: keep none over a change. Tokens continue to increase if the clock of the new server
// isn't behind that of the old one by more than the change takes, which is at least 10 seconds.
//
// On multi-primary clusters Begin can't see the holders. There, end all processes, delete the
// rows of lockstep_once whose names begin with "lockstep:shard:" in all databases, and let
// [Shards.Install] record the new set.
//
// # What it relies on
//
// A process that has called For takes its lock within 5 seconds, or [Shards.Guard] is called
// in the transaction, or [Shards.Confirm] after the lease was granted, which need no time.
// Run begins a transaction again without For, and maybe later than that: in functions that
// take seconds call Guard.
// A copy of a database has the record of its original: don't let programs reach both.
//
// # What it is not
//
// No transaction has two databases, so no lock spans two shards. For a lock that survives the
// loss of a server there is package quorum: shards divide the work, and their locks are as
// available as each server is.
package shards
