package rawsql

// TiDB is the engine TiDB. Its locks are statements of their own.
var TiDB = Engine{Renderer: alone{}, Replies: &aloneReplies, Name: "TiDB", Least: 8_00,
	ForShare: "FOR SHARE", TimeLimit: "max_execution_time", Began: tiDBBegan, Settings: tiDBSettings, Levels: "Read Committed, Repeatable Read",
	SnapshotAtBegin: true, OneByOne: true, Waits: true, CommittedOnly: true, WholeSeconds: true, SafeReads: true, Early: true, OldID: true,
	Lacks: Lacks{
		Has:    "only exclusive locks, versions and Once, in transactions that a guarded pool begins by BeginTx, exclusive leases, jobs and elections",
		Pools:  "this pool is another one, or this isn't done on TiDB",
		Begin:  "begin the transaction by BeginTx, not by a statement",
		Levels: "begin the transaction at READ COMMITTED or REPEATABLE READ, not at ",
		Shared: "no shared locks, and no locksqlc.Do: lock exclusively, in the transaction that writes",
		Leases: "no shared leases, semaphores and Fair: acquire leases exclusively, without Fair",
		Views:  "no views: query information_schema.DATA_LOCK_WAITS and CLUSTER_TIDB_TRX",
	}}

// aloneReplies are those to statements that share no text.
var aloneReplies = Replies{IDs: map[string][]int64{"LockNamed": {1}, "LockCenter": {0, 1}, "TouchNamed": {0, 1}}}

// alone renders no two statements as one text.
type alone struct{}

// RefusesStale is Renderer.RefusesStale.
func (alone) RefusesStale(string) bool { return false }

// Open is Renderer.Open.
func (alone) Open(_ Begin, s Statement, _ bool) (Statement, bool) { return s, false }

// Commit is Renderer.Commit.
func (alone) Commit(s Statement) (Statement, bool) { return s, false }

// LockThen is Renderer.LockThen.
func (alone) LockThen(_ Begin, lock Statement, _ string, _ int) (Statement, bool) { return lock, false }

// WriteAndCommit is Renderer.WriteAndCommit.
func (alone) WriteAndCommit(query string, _ int, _ int64) (Statement, bool) {
	return Statement{Query: query}, false
}

const (
	tiDBBegan    = "SELECT @@tidb_current_ts"
	tiDBSettings = "SELECT CONCAT_WS(' ', '" + SettingsBegin + "', CONCAT('tidb_txn_mode=', @@tidb_txn_mode)," +
		" CONCAT('tidb_constraint_check_in_place_pessimistic=', @@tidb_constraint_check_in_place_pessimistic)," +
		" CONCAT('tidb_skip_isolation_level_check=', @@tidb_skip_isolation_level_check)," +
		" CONCAT('tidb_dml_type=', LOWER(@@tidb_dml_type))," +
		" CONCAT('tidb_batch_writes=', @@tidb_batch_insert + @@tidb_batch_delete + @@tidb_batch_commit)," +
		" CONCAT('tidb_old_reads=', (@@tidb_snapshot <> '') + @@tidb_read_staleness + @@tidb_low_resolution_tso + @@tidb_rc_read_check_ts + @@tidb_enable_external_ts_read))"
)
