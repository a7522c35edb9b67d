package guard

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// groupPatience bounds how long a COMMIT may have waited for the answer that the group has
// refused it. A member that STOP GROUP_REPLICATION ends gives that answer, too, to what has
// waited for 50 s (TRANSACTION_KILL_TIMEOUT in MySQL's sources), before it says that it leaves.
const groupPatience = 10 * time.Second

// sending is a COMMIT that is under way.
type sending struct {
	c     *conn
	known *string // the view of the group, before
	at    time.Time
}

// committing must be called before what commits is sent.
func (c *conn) committing() sending { return sending{c, c.pool.view.Load(), time.Now()} }

// outcome returns what the reply to a COMMIT means. A member of a Group Replication gives one
// answer to a transaction that the group has refused, which is rolled back everywhere, and to
// one that waits for the group while the member leaves, which the others may have. Who leaves
// says so before it answers, and who comes back is in another view of the group. So the member
// is asked: if it is in the view that this pool knew of before, the group has refused the
// transaction, and outcome returns fault.Refused. The first such answer makes the view known;
// it, and each after which nobody may ask, stays what it was.
func (s sending) outcome(reply error) error {
	if reply == nil {
		return nil
	}
	refused := fault.Refused(reply)
	if refused == nil || time.Since(s.at) > groupPatience {
		return reply
	}
	ctx, cancel := context.WithTimeout(context.Background(), groupPatience)
	defer cancel()
	row, err := readRow(ctx, s.c.base, rawsql.GroupView, 1)
	if err != nil { // it is not a member any more, or this user may not ask
		return reply
	}
	s.c.pool.view.Store(&row[0])
	if s.known == nil || *s.known != row[0] {
		return reply
	}
	return refused
}
