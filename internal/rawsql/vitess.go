package rawsql

// Vitess is the engine Vitess, where its keyspace is on one server. Before that stands vtgate, and
// so no two statements share a text.
var Vitess = Engine{Renderer: alone{}, Replies: &aloneReplies, Name: "Vitess", Least: 8_00,
	ForShare: "FOR SHARE", TimeLimit: "max_execution_time", Settings: vitessSettings, Prepare: "SET transaction_mode = 'single', innodb_lock_wait_timeout = LEAST(@@innodb_lock_wait_timeout, 15)",
	Gateway: true, CommittedOnly: true, OldID: true,
	Lacks: Lacks{
		Has:    "only exclusive locks, versions and Once, in transactions that a guarded pool begins by BeginTx, exclusive leases, jobs and elections",
		Pools:  "this pool is another one, or this isn't done on Vitess",
		Begin:  "begin the transaction by BeginTx, not by a statement",
		Levels: "it may ignore an isolation level, so begin the transaction at that of the session, not at ",
		Shared: "no shared locks, and no locksqlc.Do: lock exclusively, in the transaction that writes",
		Plain:  "a transaction has only reads, writes and savepoints, since no reply shows what another statement has ended: send this one outside of it: ",
		Leases: "no shared leases, semaphores and Fair: acquire leases exclusively, without Fair",
		Views:  "no views: vtgate doesn't show who waits",
		Shards: "locks and rows are on one shard: on each shard's MySQL server install lockstep and lock, see docs/reference/lost-updates.md",
	}}

// vttablet may answer a SELECT outside of a transaction by what another session is told whose text is
// the same (its consolidator), so this asks for all settings again, by a text of its own.
const vitessSettings = "SELECT CONCAT_WS(' ', " + Settings + ", CONCAT('transaction_mode=', LOWER(@@transaction_mode)), CONCAT('workload=', LOWER(@@workload))," +
	" CONCAT('target=', DATABASE() LIKE '%@%' OR DATABASE() LIKE '%:%' OR DATABASE() LIKE '%[%'), '" + Nonce + "')"
