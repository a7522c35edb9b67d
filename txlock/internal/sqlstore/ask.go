package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// Question reads what the holder of a claim was asked last.
func (s session) Question(ctx context.Context, c store.Claim) (store.Question, error) {
	row, err := queries.QuestionOf(ctx, s.db, gen.QuestionOfParams{Name: []byte(c.Key), Slot: c.Slot, Owner: []byte(c.Owner), Token: c.Token})
	if errors.Is(err, sql.ErrNoRows) {
		return store.Question{}, nil
	}
	return store.Question{Row: c.Row, At: row.AskedUs, Why: string(row.Question)}, err
}

// questions reads what the holders were asked and not told of yet.
func (s session) questions(ctx context.Context, holds []rawsql.Hold) (all []store.Question, err error) {
	rows, err := s.db.QueryContext(ctx, rawsql.QuestionsMany(holds))
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
	if affected >= 2 {
		at, err := result.LastInsertId()
		if err != nil {
			return asked, err
		}
		if at < firstToken {
			return asked, unknownReply("AskHolders", fmt.Sprintf("the insert id %d", at))
		}
		since = min(since, at)
	}
	left, err := queries.NotAsked(ctx, db, gen.NotAskedParams{Name: []byte(key), SinceUs: since})
	others := left.Holders - left.NotAsked // and those whom we have asked, if they are still there
	return store.Asked{At: min(since, left.NowUs), Holders: int(affected/2 + others), Left: int(left.NotAsked)}, err
}
