package txlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// A Holder currently holds a lock exclusively.
type Holder struct {
	Key     Key
	Token   uint64    // the fencing token of the grant
	Label   string    // the label of WithLabel
	Session uint64    // CONNECTION_ID() of the holder's transaction, for KILL
	Locked  time.Time // when it was granted, by the server's clock
}

// Holders returns the exclusive holders of the keys, in the order of the keys, and omits keys
// without a holder. The holder of a hashed key may hold another key of the same center lock.
// Shared holders leave no trace and are not found, nor is a lock kept over a ROLLBACK TO
// SAVEPOINT.
//
// It doesn't wait, reads uncommitted data and compares it with committed data, and needs no
// privilege but SELECT. It returns ErrInvalidKey and ErrSchema, schema.ErrEngine where what isn't
// committed can't be read, and the errors of the driver.
func Holders(ctx context.Context, db *sql.DB, keys ...Key) ([]Holder, error) {
	if ctx == nil {
		return nil, errors.New("txlock: Holders needs a context, got nil")
	}
	if db == nil {
		return nil, fmt.Errorf("holders: the *sql.DB is nil")
	}
	if err := checkKeys(keys); err != nil {
		return nil, err
	}
	server, err := introduce(ctx, db)
	if err != nil {
		return nil, fault.Of("holders", err, server)
	}
	now := make(map[record]Holder, len(keys))
	err = uncommitted(ctx, db, func(tx *sql.Tx) error { return readHolders(ctx, tx, keys, now) })
	if err != nil {
		return nil, fault.Of("holders", err, server)
	}
	// Read after it: a holder that commits in between is seen as gone, and none
	// is invented.
	committed := make(map[record]Holder, len(keys))
	if server.Isolation <= sql.LevelReadUncommitted { // of the session, or not known
		err = rawsql.InTx(ctx, db, sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true}, func(tx *sql.Tx) error { return readHolders(ctx, tx, keys, committed) })
	} else {
		err = readHolders(ctx, db, keys, committed)
	}
	if err != nil {
		return nil, fault.Of("holders", err, server)
	}
	var holders []Holder
	for _, key := range keys {
		h, ok := now[key.record()]
		if ok && h.Token > committed[key.record()].Token {
			h.Key = key
			holders = append(holders, h)
		}
	}
	return holders, nil
}

// readHolders reads the rows of the keys as db sees them.
func readHolders(ctx context.Context, db gen.DBTX, keys []Key, into map[record]Holder) error {
	for part := range partsOf(sorted(keys), chunk) {
		if part[0].hashed {
			slots := make([]uint32, len(part))
			for i, key := range part {
				slots[i] = uint32(key.Slot())
			}
			rows, err := queries.CenterHolders(ctx, db, slots)
			if err != nil {
				return err
			}
			for _, r := range rows {
				into[record{slot: uint16(r.Slot), hashed: true}] = holder(r.Token, r.Owner, r.ConnID, r.LockedUs)
			}
			continue
		}
		names := make([][]byte, len(part))
		for i, key := range part {
			names[i] = []byte(key.name)
		}
		rows, err := queries.NamedHolders(ctx, db, names)
		if err != nil {
			return err
		}
		for _, r := range rows {
			into[record{name: string(r.Name)}] = holder(r.Token, r.Owner, r.ConnID, r.LockedUs)
		}
	}
	return nil
}

func holder(token uint64, owner string, conn uint64, lockedUS int64) Holder {
	return Holder{Token: token, Label: owner, Session: conn, Locked: time.UnixMicro(lockedUS)}
}
