package lease

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	deadlock := &mysql.MySQLError{Number: 1213}
	for _, c := range []struct {
		reply store.Reply
		err   error
		want  outcome
	}{
		{reply: store.Done, want: outGranted},
		{reply: store.Absent, want: outAbsent},
		{reply: store.Refused, want: outRefused},
		{reply: store.Full, want: outRefused},
		{reply: store.Other, want: outRefused},
		{reply: store.Late, want: outLate},
		{err: deadlock, want: outConflicted},
		{reply: store.Done, err: deadlock, want: outConflicted}, // the error counts
		{err: &mysql.MySQLError{Number: 3101}, want: outConflicted},
		{err: context.DeadlineExceeded, want: outOverdue},
		{err: fmt.Errorf("read: %w", context.DeadlineExceeded), want: outOverdue},
		{err: context.Canceled, want: outFailed},
		{err: &mysql.MySQLError{Number: 1146}, want: outFailed},
		{err: ErrClosed, want: outFailed},
	} {
		got := classify(c.reply, c.err)
		testdb.ErrorIf(t, got != c.want, "reply %d, error %v: outcome %d, want %d", c.reply, c.err, got, c.want)
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	var begun progress
	for _, c := range []struct {
		name string
		from progress
		o    outcome
		want step
		then progress
	}{
		{"granted", begun, outGranted, stepTake, begun},
		{"refused", begun, outRefused, stepFail, begun},
		{"failed", begun, outFailed, stepFail, begun},
		{"without an answer", begun, outOverdue, stepFail, begun},
		{"absent", begun, outAbsent, stepLook, begun},
		{"late", begun, outLate, stepReadClock, progress{clockRead: true}},
		{"late again", progress{clockRead: true}, outLate, stepFail, progress{clockRead: true}},
		{"a conflict", begun, outConflicted, stepSend, progress{conflicts: 1}},
		{"the last conflict", progress{conflicts: maxConflicts - 1}, outConflicted, stepSend, progress{conflicts: maxConflicts}},
		{"one too many", progress{conflicts: maxConflicts}, outConflicted, stepFail, progress{conflicts: maxConflicts}},
	} {
		got, then := c.from.next(c.o)
		testdb.ErrorIf(t, got != c.want || then != c.then, "%s: step %d and %+v, want %d and %+v", c.name, got, then, c.want, c.then)
	}
}

func TestNextOf(t *testing.T) {
	t.Parallel()
	var (
		writer = wish{owner: "me", lease: true}
		named  = wish{owner: "me", lease: true, named: true}
		reader = wish{owner: "me", shared: true}
		permit = wish{owner: "me"}

		begun  progress
		inTurn = progress{attempt: attempt{inTurn: true}}
		queued = progress{attempt: attempt{queued: guardPatience}}
		once   = progress{tries: 1}
		read   = progress{tries: 1, clockRead: true}

		free   = store.Glance{Exists: true}
		entry  = store.Glance{Exists: true, Use: store.Shared}
		mine   = store.Glance{Exists: true, Owner: "me", Left: time.Second}
		theirs = store.Glance{Exists: true, Owner: "you", Left: time.Second}
	)
	for _, c := range []struct {
		name string
		from progress
		seen store.Glance
		who  wish
		want step
		then progress
	}{
		{"no row", begun, store.Glance{}, writer, stepMakeRows, begun},
		{"no row, in turn", inTurn, store.Glance{}, named, stepMakeRows, inTurn},
		{"somebody has it", begun, theirs, writer, stepBusy, begun},
		{"somebody has it, in turn", inTurn, theirs, named, stepBusy, inTurn},
		{"somebody has it, tried before", once, theirs, writer, stepBusy, once},
		{"an owner that was never named has it", begun, mine, writer, stepBusy, begun},
		{"its own, in turn", inTurn, mine, named, stepSend, begun},
		{"its own, locked", begun, mine, named, stepSend, queued},
		{"its own, locked for long", queued, mine, named, stepBusy, queued},
		{"its own, to read", begun, mine, reader, stepSend, queued},
		{"its own, to read, in turn", inTurn, mine, reader, stepSend, progress{attempt: attempt{inTurn: true, queued: guardPatience}}},
		{"once its own, and free", begun, store.Glance{Exists: true, Owner: "me"}, named, stepSend, once},
		{"its own, to read, for long", queued, mine, reader, stepReadClock, progress{attempt: queued.attempt, clockRead: true}},
		{"its own, to read, for long, by the right clock", progress{attempt: queued.attempt, clockRead: true}, mine, reader, stepBusy, progress{attempt: queued.attempt, clockRead: true}},
		{"its own, of permits", begun, mine, permit, stepReadClock, progress{clockRead: true}},
		{"free, in turn", inTurn, free, writer, stepMakeQueueRow, progress{attempt: inTurn.attempt, tries: 1}},
		{"free, in turn, tried before", progress{attempt: inTurn.attempt, tries: 1}, free, writer, stepLocked, progress{attempt: inTurn.attempt, tries: 1}},
		{"free", begun, free, writer, stepSend, once},
		{"free, tried before", once, free, writer, stepLocked, once},
		{"free for a reader", begun, entry, reader, stepSend, once},
		{"free for a reader, tried before", once, entry, reader, stepReadClock, read},
		{"free for a reader, by the right clock", read, entry, reader, stepLocked, read},
		{"free for a permit, tried before", once, free, permit, stepReadClock, read},
		{"readers keep it locked", once, entry, writer, stepSend, progress{attempt: attempt{queued: mostLook}, tries: 1}},
		{"readers keep it locked, for long", progress{attempt: attempt{queued: mostLook}, tries: 1}, entry, writer, stepLocked, progress{attempt: attempt{queued: mostLook}, tries: 1}},
	} {
		got, then := c.from.nextOf(c.seen, c.who)
		testdb.ErrorIf(t, got != c.want || then != c.then, "%s: step %d and %+v, want %d and %+v", c.name, got, then, c.want, c.then)
	}
}
