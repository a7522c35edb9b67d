package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/dca00107/lockstep/tests/chaos/generated"
)

// ofGenerated begins the records of the queries that lockgen gives their locks.
const ofGenerated = "generated:"

// generatedRecords is how many there are.
const generatedRecords = 2

// generatedQueries raises a record by queries of sqlc, which lock what they read and write.
func (w *worker) generatedQueries() outcome {
	id := int64(1 + w.IntN(generatedRecords))
	name := fmt.Sprint(ofGenerated, id)
	return w.transact(w.begin("generated", name), w.begun(w.pool), func(ctx context.Context, t *transaction) error {
		queries, err := w.queries(ctx, t.Tx)
		if err != nil {
			return err
		}
		value, err := queries.Value(ctx, id)
		if err != nil {
			return err
		}
		w.think(w.TTL / 300)
		if err := queries.SetValue(ctx, generated.SetValueParams{Value: value + 1, ID: id}); err != nil {
			return err
		}
		t.wrote = append(t.wrote, name)
		_, err = t.ExecContext(ctx, "INSERT INTO commits VALUES (?, ?, ?, 0)", t.id, name, value+1)
		return err
	})
}

// queries are those with locks.
func (w *worker) queries(ctx context.Context, tx *sql.Tx) (generated.Querier, error) {
	if w.Without == "generated" {
		return generated.New(tx), nil
	}
	return generated.New(tx).WithLocks(ctx, tx)
}
