package shards

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// Install records the first set in all of its databases. Until then For returns ErrSet. A
// program may call it at every start, after schema.Install: where the set is recorded, or a
// change to it is under way, it changes nothing.
//
// It returns ErrSet if another set is recorded in any of the databases, also one with other
// names for them, or if a database has no record and others have: it is new, or has lost its
// data. It also returns the errors of the driver. The first set is used when all databases have
// recorded it: where one doesn't answer, call Install again. Later the program may work without
// that database: For returns the shard of each key.
func (s *Shards) Install(ctx context.Context) (err error) {
	if ctx == nil {
		return errors.New("shards: Install needs a context, got nil")
	}
	for range 3 {
		err = s.install(ctx)
		if !errors.Is(err, errMeanwhile) && !errors.Is(err, errPartly) && !errors.Is(err, errForeign) {
			return err
		}
	}
	return err
}

var errPartly = errors.New("have no record, and the others have: they are new, or have lost their data; take them out of the set, and in again, by shards.Begin and shards.Finish")

// install is Install once. Its errors may be due to another process that is at it, too. No
// database has the set before all have what precedes it, and nothing of another set: two
// processes with different first sets don't both come to an end.
func (s *Shards) install(ctx context.Context) (err error) {
	installing, done := record{to: s.set}.String(), stable(s.set).String()
	found, counts := make(map[string]entry, len(s.shards)), make(map[string]int)
	var down []error
	for _, name := range s.set.names {
		e, err := s.shards[name].read(ctx)
		switch {
		case err != nil:
			down = append(down, err)
			continue
		case e.text != "" && e.text != installing && !e.knows(s.set):
			return s.shards[name].refuse(e.record, s.set)
		}
		found[name] = e
		counts[e.text]++
	}
	if err := errors.Join(down...); err != nil {
		return err
	}
	if counts[""] > 0 && counts[""]+counts[installing] < len(found) {
		return fmt.Errorf("%w: the databases of the set %s: %d %w", ErrSet, s.set, counts[""], errPartly)
	}
	if counts[""]+counts[installing] == 0 {
		return nil
	}
	for _, step := range []struct{ old, new string }{{"", installing}, {installing, done}} {
		if err = alone(ctx, slices.Collect(maps.Values(s.shards)), s.set); err != nil {
			return err
		}
		for _, name := range s.set.names {
			if found[name].text != step.old {
				continue
			}
			if found[name], err = s.shards[name].replace(ctx, found[name], parseRecord(step.new)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Lost names a shard of the old set that is gone for good: Begin and Finish leave it out. No
// process may reach it any more, also no process that could still have a connection to it,
// since its record can't be changed: a reader of that continues.
type Lost string

// Begin begins to change the set, and returns when no key that moves is held any more. From its
// beginning, all processes refuse the keys that move, with ErrMoving, and work with all others,
// whether their set is the old one or the new one. Then move the data that belong to these
// keys, if there are any, restart the processes with the new set, one after the other, and call
// Finish.
//
// Begin records the change in all databases, waits 10 seconds, in which every process has read
// it, then waits until no lease of a key that moves is held, and then for every transaction
// that has begun before, by LOCK TABLES of the tables of lockstep, at most a second at a time:
// others wait behind it, renewals of leases too. That needs the privilege LOCK TABLES. Last it
// checks the leases again, since such a transaction may have acquired one.
//
// It returns ErrSet if neither the old set nor this change is recorded, or if a database is in
// another set, too, txlock.ErrInvalidOption if the two sets are the same or one is nil,
// schema.ErrMultiPrimary on a multi-primary cluster, and the errors of the driver and of the
// context with what it has waited for. It may be repeated then: a change that has begun lasts
// until Finish. Finish(ctx, to, from) takes it back. ErrSet is also returned if the change was
// taken back and restarted meanwhile.
func Begin(ctx context.Context, from, to *Shards, lost ...Lost) error {
	if ctx == nil {
		return errors.New("shards: Begin needs a context, got nil")
	}
	all, err := bothOf(from, to, lost)
	if err != nil {
		return err
	}
	moving, drained := record{from: from.set, to: to.set}, record{from: from.set, to: to.set, drained: true}
	found, err := readAll(ctx, all, func(s *shard, e entry) error {
		switch {
		case e.text == from.set.String(), e.text == moving.String(), e.text == drained.String():
			return nil
		case !from.set.has(s.name) && !e.from.has(s.name) && !e.to.has(s.name):
			return nil // new, or not in a set any more
		}
		return s.refuse(e.record, from.set)
	})
	if err != nil {
		return err
	}
	old, added := split(all, from.set)
	all = slices.Concat(old, added) // of two changes at once, one fails before it touches a new database
	for _, s := range all {
		if err := schema.CheckCluster(ctx, s.db); err != nil {
			return fmt.Errorf("shard %s: %w", s.name, err)
		}
	}
	if err := alone(ctx, all, from.set, to.set); err != nil {
		return err
	}
	if err := replaceAll(ctx, all, found, moving); err != nil {
		return err
	}
	if err := leaseutil.Pause(ctx, 2*from.lookAgain, nil); err != nil {
		return fmt.Errorf("shards: wait until every process knows of the change: %w", err)
	}
	if err := alone(ctx, all, from.set, to.set); err != nil { // installed at the same time
		return err
	}
	for _, s := range old {
		if err := s.drain(ctx, func(key txlock.Key) bool { return from.Name(key) == s.name && moving.moves(from.text(key)) }); err != nil {
			return fmt.Errorf("shard %s: %w", s.name, err)
		}
	}
	return replaceAll(ctx, all, found, drained)
}

// Finish ends the change that Begin has begun: from now on processes with the new set use
// all keys, and those with the old set are refused, with ErrSet. To take a change back, call
// Finish with the two sets exchanged, also where Begin has failed; what has been moved must
// be back by then.
//
// It returns ErrSet if Begin wasn't successful, txlock.ErrInvalidOption as Begin does, and the
// errors of the driver. It may be repeated.
func Finish(ctx context.Context, from, to *Shards, lost ...Lost) error {
	if ctx == nil {
		return errors.New("shards: Finish needs a context, got nil")
	}
	all, err := bothOf(from, to, lost)
	if err != nil {
		return err
	}
	begun := false // by a Finish before, which has found all drained
	ready := []string{
		to.set.String(),
		record{from: from.set, to: to.set, drained: true}.String(),
		record{from: to.set, to: from.set, drained: true}.String(), // back
		record{from: to.set, to: from.set}.String(),
	}
	check := func(s *shard, e entry) error {
		begun = begun || e.text == to.set.String()
		if slices.Contains(ready, e.text) || begun && e.text == (record{from: from.set, to: to.set}).String() {
			return nil
		}
		return fmt.Errorf("%w: that of shard %s is %s: Finish needs a Begin that was successful", ErrSet, s.name, e)
	}
	found, err := readAll(ctx, all, check)
	if err != nil {
		return err
	}
	return replaceAll(ctx, all, found, stable(to.set))
}

// replaceAll writes a record instead of those that were found, and notes it there.
func replaceAll(ctx context.Context, all []*shard, found map[string]entry, r record) (err error) {
	for _, s := range all {
		if found[s.name], err = s.replace(ctx, found[s.name], r); err != nil {
			return err
		}
	}
	return nil
}

// bothOf returns the shards of both sets, each once, in the order of their names.
func bothOf(from, to *Shards, lost []Lost) (all []*shard, err error) {
	if from == nil || to == nil {
		return nil, fmt.Errorf("%w: a change of the set needs two *Shards, got nil", txlock.ErrInvalidOption)
	}
	if from.set.String() == to.set.String() {
		return nil, fmt.Errorf("%w: both sets are %s: there is nothing to change", txlock.ErrInvalidOption, to.set)
	}
	both := maps.Clone(from.shards)
	maps.Copy(both, to.shards)
	for _, name := range lost {
		if !from.set.has(string(name)) || to.set.has(string(name)) {
			return nil, fmt.Errorf("%w: Lost(%q) must be a shard of the old set, and none of the new one", txlock.ErrInvalidOption, string(name))
		}
		delete(both, string(name))
	}
	for _, name := range slices.Sorted(maps.Keys(both)) {
		all = append(all, both[name])
	}
	return all, nil
}

// split returns the shards that are in a set, and the others.
func split(all []*shard, in set) (old, added []*shard) {
	for _, s := range all {
		if in.has(s.name) {
			old = append(old, s)
		} else {
			added = append(added, s)
		}
	}
	return old, added
}

// readAll reads all records, by the names of the shards, if check finds nothing wrong with
// any.
func readAll(ctx context.Context, all []*shard, check func(s *shard, e entry) error) (map[string]entry, error) {
	found := make(map[string]entry, len(all))
	for _, s := range all {
		e, err := s.read(ctx)
		if err == nil {
			err = check(s, e)
		}
		if err != nil {
			return nil, err
		}
		found[s.name] = e
	}
	return found, nil
}
