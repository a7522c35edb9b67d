package shards

import "errors"

var (
	// ErrSplit is returned for keys of several shards, where one is needed. Nothing was
	// sent.
	ErrSplit = errors.New("shards: the keys are in several shards")
	// ErrSet is returned when the database of a shard says that the set of shards is
	// another one, or doesn't know any. The message has both sets, and what to do.
	ErrSet = errors.New("shards: another set of shards is recorded")
	// ErrMoving is returned for a key that moves to another shard by a change of the set that
	// is under way, from Begin to Finish. Try again later.
	ErrMoving = errors.New("shards: the key moves to another shard at the moment")
)
