package shards

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

var queries = gen.New()

var errMeanwhile = errors.New("another process has changed it meanwhile")

// shard is one database of a set.
type shard struct {
	name string
	db   *sql.DB

	looking chan struct{} // full while somebody uses the fields below
	known   record
	at      time.Time // when known was asked for; zero for never
}

// rowPrefix begins the names of all records in lockstep_once. No key has one.
const rowPrefix = "lockstep:shard:"

// row is the name of the record.
func (s *shard) row() []byte { return []byte(rowPrefix + s.name) }

// entry is a record as it was read from a database.
type entry struct {
	record
	text    string // "" if there is no record
	version int64  // rises with each change
}

// recent returns the record, at most as old as that. One goroutine reads it at a time.
func (s *shard) recent(ctx context.Context, old time.Duration) (record, error) {
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-ctx.Done():
		return record{}, fmt.Errorf("shard %s: read the record: %w", s.name, ctx.Err())
	}
	if asked := time.Now(); s.at.IsZero() || asked.Sub(s.at) >= old {
		found, err := s.read(ctx)
		if err != nil {
			return record{}, err
		}
		s.known, s.at = found.record, asked
	}
	return s.known, nil
}

// read reads the record.
func (s *shard) read(ctx context.Context) (entry, error) {
	found, err := queries.ShardRecord(ctx, &rawsql.Text{DBTX: s.db, Inline: true}, s.row())
	r, err := s.parse(found.Result, err)
	return entry{r, string(found.Result), found.DoneUs}, err
}

// locked reads the record in a transaction, and keeps it from being changed until the end.
func (s *shard) locked(ctx context.Context, tx rawsql.DBTX) (record, error) {
	return s.parse(queries.OnceResult(ctx, tx, s.row()))
}

func (s *shard) parse(found []byte, err error) (record, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return record{}, nil
	}
	if err != nil {
		return record{}, fault.Explain(fmt.Sprintf("shard %s: read the record", s.name), err)
	}
	return parseRecord(string(found)), nil
}

// replace writes a record instead of the one that was read, and returns it as it is then.
// It returns ErrSet if it has been changed meanwhile, also if it was changed back.
func (s *shard) replace(ctx context.Context, old entry, r record) (entry, error) {
	if old.text == r.String() {
		return old, nil
	}
	var err error
	db := &rawsql.Text{DBTX: s.db, Inline: true}
	if old.text == "" {
		err = queries.MakeShardRecord(ctx, db, gen.MakeShardRecordParams{Name: s.row(), Fingerprint: []byte(rand.Text()), Record: []byte(r.String())})
	} else {
		_, err = queries.ChangeShardRecord(ctx, db, gen.ChangeShardRecordParams{Name: s.row(), Record: []byte(r.String()), DoneUs: old.version})
	}
	if err != nil {
		return entry{}, fault.Explain(fmt.Sprintf("shard %s: write the record %s", s.name, r), err)
	}
	now, err := s.read(ctx)
	if err == nil && now.text != r.String() { // else this call or somebody else wrote it
		err = fmt.Errorf("%w: that of shard %s is %s: %w", ErrSet, s.name, now, errMeanwhile)
	}
	return now, err
}

// refuse is the error for a set that the record doesn't know.
func (s *shard) refuse(r record, own set) error {
	if len(r.from.names) == 0 {
		return fmt.Errorf("%w: the database of shard %s has none, or not all databases of the set %s have recorded it: the first set is recorded by Shards.Install", ErrSet, s.name, own)
	}
	return fmt.Errorf("%w: that of shard %s is %s, and the set here is %s: configure the recorded set, or change it by shards.Begin and shards.Finish", ErrSet, s.name, r, own)
}
