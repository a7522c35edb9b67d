package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

var errForeign = errors.New("give it that name, or change the set by shards.Begin and shards.Finish")

// alone returns ErrSet if one of the databases is in a set that is none of these, or is a
// shard that is another database here: processes that give other names to the same databases
// look for a key in another one.
func alone(ctx context.Context, all []*shard, sets ...set) error {
	found := make(map[*shard]map[string]gen.ShardRecordsRow)
	for _, s := range all {
		rows, err := queries.ShardRecords(ctx, rawsql.Scanning(s.db))
		if err != nil {
			return fault.Explain(fmt.Sprintf("shard %s: read all records of its database", s.name), err)
		}
		found[s] = make(map[string]gen.ShardRecordsRow)
		for _, row := range rows {
			found[s][strings.TrimPrefix(string(row.Name), rowPrefix)] = row
		}
	}
	for _, s := range all {
		for name, row := range found[s] {
			r := parseRecord(string(row.Result))
			if !r.from.has(name) && !r.to.has(name) {
				continue // left by a change
			}
			is := func(own set) bool { return r.from.String() == own.String() || r.to.String() == own.String() }
			here := slices.IndexFunc(all, func(s *shard) bool { return s.name == name })
			if !slices.ContainsFunc(sets, is) || here >= 0 && string(found[all[here]][name].Fingerprint) != string(row.Fingerprint) {
				return fmt.Errorf("%w: the database of shard %s here is shard %s of the set %s: %w", ErrSet, s.name, name, r, errForeign)
			}
		}
	}
	return nil
}
