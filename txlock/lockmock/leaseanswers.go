package lockmock

import (
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock/internal/sqlstore"
	"github.com/dca00107/lockstep/txlock/lease"
)

// play is what the server plays in one call.
type play struct {
	token uint64 // of the row
	reply int64  // to what is written
	// replies are those for some names in place of reply.
	replies map[string]int64
	err     error // likewise
	stale   bool  // the snapshot shows a lower token
	look    gen.LookLeaseRow
	// permits is what there is of those that are counted.
	permits gen.PermitsOfRow
	permit  int64 // the slot of the one that is free
	holders int64 // that are asked
	why     string
}

var (
	free    = gen.LookLeaseRow{Owner: []byte("-")}
	calm    = play{reply: 1 << 20, look: free} // between the calls
	refused = play{reply: sqlstore.ReplyRefused, look: free}
	// written is a shared lease that a writer has.
	written = play{reply: sqlstore.ReplyAbsent, look: gen.LookLeaseRow{Owner: []byte("somebody"), UsedFor: 1, LeftUs: 1e6, TtlUs: 1e6}}
)

// taken is a semaphore without a free permit.
func taken(permits int) play {
	n := int64(permits)
	return play{
		reply: sqlstore.ReplyAbsent, look: gen.LookLeaseRow{Owner: []byte("-"), UsedFor: -n},
		permits: gen.PermitsOfRow{Permits: n, Held: n, LeftUs: 1e6},
	}
}

// about makes the play that of a lease which is held.
func (p play) about(held *lease.Lease) play {
	p.token, p.look = held.Token(), free
	if p.reply == 0 {
		p.reply = int64(p.token)
	}
	return p
}

// replyTo is the reply to a statement that is written, by the name among its arguments.
func (p play) replyTo(args []driver.Value) int64 {
	for _, arg := range args {
		if name, is := arg.([]byte); is {
			if reply, named := p.replies[string(name)]; named {
				return reply
			}
		}
	}
	return p.reply
}

// answer is what a server replies to a manager whose rows all exist, and that is no
// cluster.
func (l *Leases) answer(query string, args []driver.Value) reply {
	switch query {
	case rawsql.Probe:
		return reply{err: serverError(transactionOpen, "a transaction is open (asked before "+l.what+")")}
	case rawsql.Facts:
		return row(session.Reply(l.version, newName(l.what))...)
	case rawsql.ReadCommitted:
		return reply{}
	case schema.ClusterQuery:
		return reply{columns: []string{"Variable_name", "Value"}}
	}
	switch nameOf(query) {
	case nameOf(gen.ReadEpoch):
		return rowLike(gen.ReadEpochRow{Owner: []byte(l.epoch), AgeUs: lease.MaxTTL.Microseconds() * 3})
	case nameOf(gen.LookLease):
		return rowLike(l.play.look)
	case nameOf(gen.PermitsOf):
		return rowLike(l.play.permits)
	case nameOf(gen.FreePermits):
		if l.play.permits.Held > 0 {
			return reply{columns: []string{"slot"}}
		}
		return row(l.play.permit)
	case nameOf(gen.LeaseInSnapshot):
		seen := gen.LeaseInSnapshotRow{Token: l.play.token}
		if l.play.stale {
			seen.Token--
		}
		return rowLike(seen)
	case nameOf(gen.LeaseAsItIs):
		return rowLike(gen.LeaseAsItIsRow{Token: l.play.token})
	case nameOf(gen.AskHolders):
		return reply{id: time.Now().UnixMicro(), affected: 2 * l.play.holders, err: l.play.err}
	case nameOf(gen.NotAsked):
		return rowLike(gen.NotAskedRow{NowUs: time.Now().UnixMicro()})
	case nameOf(gen.QuestionOf):
		asked := gen.QuestionOfRow{Question: []byte(l.play.why)}
		if l.play.reply&sqlstore.SharedBit != 0 {
			asked.AskedUs = time.Now().UnixMicro()
		}
		return rowLike(asked)
	case nameOf(gen.GuardLease), nameOf(gen.AcquirePermit), nameOf(gen.ReleaseNoWait):
		id := l.play.replyTo(args)
		if id == sqlstore.ReplyRefused { // for which they have no reply of its own
			id = sqlstore.ReplyAbsent
		}
		return reply{id: id, err: l.play.err}
	case nameOf(gen.AcquireLease), nameOf(gen.AcquireNoWait), nameOf(gen.RenewLease), nameOf(gen.ReleaseLease), nameOf(gen.KeepLease),
		nameOf(gen.ShareLease), nameOf(gen.ResizeSemaphore):
		return reply{id: l.play.replyTo(args), err: l.play.err}
	}
	return reply{err: fmt.Errorf("lockmock has no answer to %q", query)}
}
