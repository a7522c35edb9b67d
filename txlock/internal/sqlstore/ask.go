package sqlstore

import (
	"context"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// Questions reads what the holders of claims were asked and not told of yet.
func (s session) Questions(ctx context.Context, claims []store.Claim) (all []store.Question, err error) {
	rows, err := s.db.QueryContext(ctx, rawsql.QuestionsMany(holdsOf(claims)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has what there is to say
	for rows.Next() {
		var q store.Question
		if err := rows.Scan(&q.Key, &q.Slot, &q.At, &q.Why); err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return all, rows.Err()
}

// AskHolders asks everybody who holds something under a key. The statement that does it
// is a transaction of its own, which waits for nothing and locks no gap: if we are stopped
// meanwhile, no row stays locked that its holder has to renew.
func (s *Store) AskHolders(ctx context.Context, key, why string, since int64) (asked store.Asked, err error) {
	conn, err := s.pool.textual().Conn(ctx)
	if err != nil {
		return asked, err
	}
	if asked, err = askHolders(ctx, conn, s.pool.text(conn), key, why, since); err != nil {
		discard(conn)
		return asked, err
	}
	return asked, conn.Close()
}

func askHolders(ctx context.Context, conn, db gen.DBTX, key, why string, since int64) (asked store.Asked, err error) {
	if _, err := conn.ExecContext(ctx, rawsql.ReadCommitted); err != nil {
		return asked, err
	}
	result, err := queries.AskHolders(ctx, db, gen.AskHoldersParams{Question: []byte(why), Name: []byte(key), SinceUs: since})
	if err != nil {
		return asked, err
	}
	affected, err := result.RowsAffected()
	if err != nil {
		return asked, err
	}
	if affected > 0 {
		at, err := result.LastInsertId()
		if err != nil {
			return asked, err
		}
		since = min(since, at)
	}
	left, err := queries.NotAsked(ctx, db, gen.NotAskedParams{Name: []byte(key), SinceUs: since})
	return store.Asked{At: min(since, left.NowUs), Holders: int(affected / 2), Left: int(left.Holders)}, err
}
