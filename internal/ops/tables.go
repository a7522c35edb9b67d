package ops

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
)

// Unread tells whether a table can't be read, while others may be: it is missing or wrong, this user may not
// read it, or it doesn't answer in time.
func Unread(err error) bool {
	return Late(err) || errors.Is(err, fault.ErrSchema) || errors.Is(err, fault.ErrPrivilege)
}

// OnceRecord is a key of Once.
type OnceRecord struct {
	Key         string    `json:"key"`
	Open        bool      `json:"open"` // its first transaction is still open
	Done        time.Time `json:"done,omitzero"`
	Left        Seconds   `json:"left_s"` // how much longer it counts; below 0 it waits for a sweep; unknown if it is open
	Fingerprint string    `json:"fingerprint,omitempty"`
	Result      int       `json:"result_bytes"` // of the stored answer
}

// OnceRecords returns the keys of Once that begin with a prefix, at most so many.
func (r *Room) OnceRecords(ctx context.Context, prefix string, most int) ([]OnceRecord, error) {
	where := fmt.Sprintf("name >= ? AND LEFT(name, ?) = ? AND LEFT(name, 1) <> X'FF' ORDER BY name LIMIT %d", most)
	return r.once(ctx, where, []byte(prefix), len(prefix), []byte(prefix))
}

// OnceOf returns those of the keys that are keys of Once.
func (r *Room) OnceOf(ctx context.Context, keys ...string) (all []OnceRecord, err error) {
	for part := range slices.Chunk(keys, chunk) {
		names := make([]any, len(part))
		for i, key := range part {
			names[i] = []byte(key)
		}
		found, err := r.once(ctx, fmt.Sprintf("name IN (?%s) ORDER BY name LIMIT %d", strings.Repeat(",?", len(part)-1), chunk), names...)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (r *Room) once(ctx context.Context, where string, args ...any) ([]OnceRecord, error) {
	type row struct {
		name, fingerprint []byte
		result            int
		done, left        int64
	}
	query := `SELECT * FROM (SELECT name, fingerprint, IF(result = '-', 0, LENGTH(result)), done_us,
		CAST(done_us + keep_us - UNIX_TIMESTAMP() * 1000000 AS SIGNED)
		FROM lockstep_once WHERE ` + where + `) o`
	scan := func(o *row) []any { return []any{&o.name, &o.fingerprint, &o.result, &o.done, &o.left} }
	now, committed, err := writtenAndCommitted(ctx, &look{Room: r}, func(tx *sql.Tx) ([]row, error) { return every(ctx, tx, query, args, scan) })
	if err != nil {
		return nil, explained("read the keys of Once", "lockstep_once", err)
	}
	done := make(map[string]int64, len(committed))
	for _, o := range committed {
		done[string(o.name)] = o.done
	}
	all := make([]OnceRecord, len(now))
	for i, o := range now {
		all[i] = OnceRecord{Key: string(o.name), Open: done[string(o.name)] != o.done, Done: moment(o.done), Left: micros(o.left), Result: o.result}
		if all[i].Open {
			all[i].Done, all[i].Left = time.Time{}, unknown
		}
		if string(o.fingerprint) != "-" {
			all[i].Fingerprint = hex.EncodeToString(o.fingerprint)
		}
	}
	return all, nil
}

// Leader is who leads, by an election of package elect.
type Leader struct {
	Key     string    `json:"key"`
	By      string    `json:"by"`   // the label of its lease
	Term    uint64    `json:"term"` // its token
	Since   time.Time `json:"since"`
	Left    Seconds   `json:"left_s"`
	Standby []string  `json:"standby"` // the notes of those who stand by
}

// Vacant returns the elections that no process leads, by their keys, with the notes of those on
// standby.
func (p *Picture) Vacant() []Leader {
	labels := p.standby()
	for key := range p.elections {
		labels[key] = notNil(labels[key])
	}
	for _, lease := range p.Leases {
		if lease.Kind == string(Exclusive) {
			delete(labels, lease.Key)
		}
	}
	vacant := []Leader{}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		vacant = append(vacant, Leader{Key: key, Standby: labels[key]})
	}
	return vacant
}

// standby returns the notes of those on standby, by the keys of their elections.
func (p *Picture) standby() map[string][]string {
	labels := make(map[string][]string)
	for _, lease := range p.Leases {
		if key, is := strings.CutSuffix(lease.Key, standby); is && lease.Kind == "permit" {
			labels[key] = append(labels[key], lease.Label)
		}
	}
	return labels
}

// Leaders returns who leads. An election is known by its standby slots: one
// at which nobody ever has is a lease like others. The leader keeps its own slot, and others may have
// its name.
func (p *Picture) Leaders() []Leader {
	leaders, labels := []Leader{}, p.standby()
	for _, lease := range p.Leases {
		if !lease.Leads {
			continue
		}
		others := labels[lease.Key]
		if own := slices.Index(others, lease.Label); own >= 0 {
			others = slices.Delete(others, own, own+1)
		}
		leaders = append(leaders, Leader{lease.Key, lease.Label, lease.Token, lease.Since, lease.Left, notNil(others)})
	}
	return leaders
}
