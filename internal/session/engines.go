package session

import (
	"slices"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// rulesOf has the rules of the engines that are asked a Question.
var rulesOf = map[string][]rule{
	rawsql.TiDB.Name: instead([]rule{
		{setting: "sees_own_id", right: "0", fix: "this is another TiDB than lockstep knows"},
		{setting: "isolation", right: "REPEATABLE-READ READ-COMMITTED", fix: "TiDB has no other levels than REPEATABLE READ and READ COMMITTED: set one of these"},
		{setting: "tidb_txn_mode", right: "pessimistic", fix: "optimistic transactions lock nothing before their COMMIT: set pessimistic"},
		{setting: "tidb_constraint_check_in_place_pessimistic", right: "1", fix: "new rows aren't locked before the COMMIT: set ON"},
		{setting: "tidb_skip_isolation_level_check", right: "0", fix: "another isolation level would be accepted, and not kept: set OFF"},
		{setting: "tidb_dml_type", right: "standard", fix: "set standard"},
		{setting: "tidb_batch_writes", right: "0", fix: "it would split transactions: set tidb_batch_insert, tidb_batch_delete and tidb_batch_commit OFF"},
		{setting: "tidb_old_reads", right: "0", fix: "reads may be older than the lock: set tidb_snapshot, tidb_read_staleness, tidb_low_resolution_tso, tidb_rc_read_check_ts and tidb_enable_external_ts_read to their defaults"},
	}),
	rawsql.Vitess.Name: instead([]rule{
		{setting: "sees_own_id", right: "0", fix: "this is another Vitess than lockstep knows"},
		{setting: "transaction_mode", right: "single", guarded: true, fix: "a transaction could commit on one shard and not on another: set single, as the pool did"},
		{setting: "target", right: "0", fix: "it is at a replica or a shard: name the keyspace alone"},
		{setting: "workload", right: "oltp", fix: "what isn't read row by row isn't locked: set oltp"},
	}),
}

// instead returns the general rules with others in place of those of the same settings.
func instead(others []rule) []rule {
	return slices.Concat(others, slices.DeleteFunc(slices.Clone(rules), func(r rule) bool {
		return slices.ContainsFunc(others, func(other rule) bool { return other.setting == r.setting })
	}))
}
