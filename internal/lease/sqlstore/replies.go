package sqlstore

import (
	"fmt"
	"strconv"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// This file has all replies of the statements in queries/leases.sql and shared.sql that come
// as an insert id. Any other is an error: nobody knows what the statement has done.
const (
	firstToken = 16
	SharedBit  = store.MaxToken + 1 // of a token: there may be readers
)

// meaning is what the replies of a statement mean.
type meaning struct {
	others map[int64]store.Reply // those that are no token
	token  bool                  // others are tokens
	bit    bool                  // a token may have SharedBit
}

var meanings = map[string]meaning{
	"AcquireLease":  {token: true, bit: true},
	"AcquireNoWait": {token: true, bit: true},
	"AcquirePermit": {token: true},
	"ShareLease":    {token: true, others: map[int64]store.Reply{0: store.Absent, 1: store.Refused}},
	"RenewLease":    {others: map[int64]store.Reply{1: store.Done, 2: store.Questioned}},
}

// answerOf returns the meaning of a statement's reply.
func answerOf(statement string, slot int64) func(reply int64, err error) (store.Answer, error) {
	return func(reply int64, err error) (store.Answer, error) {
		a, m := store.Answer{Slot: slot}, meanings[statement]
		if err != nil {
			return a, err
		}
		other, known := m.others[reply]
		switch {
		case known:
			a.Reply = other
		case !m.token, reply&^SharedBit < firstToken, reply&SharedBit != 0 && !m.bit:
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
