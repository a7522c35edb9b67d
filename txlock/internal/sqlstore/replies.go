package sqlstore

import (
	"fmt"
	"strconv"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// This file has all replies of the statements in queries/leases.sql and shared.sql that come
// as an insert id. Any other is an error: nobody knows what the statement has done.
const (
	ReplyAbsent  = 0 // the row is locked by somebody or missing
	ReplyRefused = 1 // it is somebody else's; from 2 up it depends on the statement
	firstToken   = 16

	SharedBit = store.MaxToken + 1 // of a token: there may be readers, or a question
	UsedFor   = 100000             // the reply of MarkGate for store.Exclusive
)

// beyond is the meaning of a reply of AcquireNoWait: only AcquireLease can tell.
const beyond store.Reply = -1

// meaning is what the replies of a statement mean.
type meaning struct {
	others  map[int64]store.Reply // those that are no token
	bit     bool                  // a token may have SharedBit
	permits bool                  // in place of tokens it has UsedFor plus a number of permits
}

var absentOrRefused = map[int64]store.Reply{ReplyAbsent: store.Absent, ReplyRefused: store.Refused}

var meanings = map[string]meaning{
	"AcquireLease":    {others: map[int64]store.Reply{0: store.Absent, 1: store.Refused, 2: store.Full, 3: store.Late, 4: store.Other}, bit: true},
	"AcquireNoWait":   {others: map[int64]store.Reply{0: store.Absent, 1: store.Refused, 5: beyond}, bit: true},
	"ShareLease":      {others: absentOrRefused},
	"AcquirePermit":   {others: map[int64]store.Reply{0: store.Absent}},
	"ReleaseLease":    {others: map[int64]store.Reply{0: store.Absent, 1: store.Refused, 2: store.Expired}},
	"ReleaseNoWait":   {others: map[int64]store.Reply{0: store.Absent}},
	"KeepLease":       {others: map[int64]store.Reply{0: store.Absent, 1: store.Refused, 2: store.Expired, 3: store.Kept}},
	"RenewLease":      {others: absentOrRefused, bit: true},
	"RaiseToken":      {others: absentOrRefused},
	"GuardLease":      {others: map[int64]store.Reply{0: store.Refused}},
	"ForceRelease":    {others: absentOrRefused},
	"MarkGate":        {others: map[int64]store.Reply{0: store.Absent, UsedFor: store.Done, UsedFor + 1: store.Done}, permits: true},
	"ResizeSemaphore": {others: absentOrRefused, permits: true},
}

// answerOf returns the meaning of a statement's reply: a token, or the reason why there is
// none.
func answerOf(statement string, slot int64) func(reply int64, err error) (store.Answer, error) {
	return func(reply int64, err error) (store.Answer, error) {
		a, m := store.Answer{Slot: slot}, meanings[statement]
		if err != nil {
			return a, err
		}
		other, known := m.others[reply]
		switch number := reply - UsedFor; {
		case known:
			a.Reply = other
		case m.permits && max(number, -number) >= 1 && max(number, -number) <= store.MaxPermits:
			a.Reply = store.Done
		case m.permits, m.others == nil, reply&^SharedBit < firstToken, reply&SharedBit != 0 && !m.bit:
			return a, unknownReply(statement, "the insert id "+strconv.FormatInt(reply, 10))
		default:
			a.Reply, a.Token, a.Shared = store.Done, uint64(reply&^SharedBit), reply&SharedBit != 0
		}
		return a, nil
	}
}

func unknownReply(statement, came string) error {
	return fmt.Errorf("lease: %w", fault.UnknownReply(statement, came))
}
