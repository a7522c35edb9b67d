package lease

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/holderlookup"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/procname"
	"github.com/dca00107/lockstep/txlock"
)

// request is one call of Acquire or another method that acquires, with all that it has
// seen.
type request struct {
	terms
	verb   string
	key    txlock.Key
	owner  string
	named  bool             // the owner may hold the lease already
	under  *Lease           // the lease that the context carries for the key, or nil
	from   *leaseutil.Owner // of the context: the innermost owner that is still to be tried
	inside bool             // a function that the manager runs acquires it
	reads  []string         // owners of the context that read by other managers
	hold   string           // its entry in the list of holds, if it is granted: see needHold
	asked  instant
	limit  instant // until when it waits, if WaitAtMost limits that
	seen   sight
	met    *txlock.HeldError                      // the last other holder that was seen
	later  *holderlookup.Later[*txlock.HeldError] // what SlowWait shows, while it waits

	target target
	shared bool
	drains bool          // it must wait until the readers are gone
	turn   store.Session // its place in the queue of Fair, while it is the first there

	asksAlone bool // it was asked: its owner is no reader, see notReading

	blocked blocked
	silent  instant // since when the server has answered no attempt; 0: it has answered the last
}

// errLimit is the cause of a context that ends by WaitAtMost.
var errLimit = errors.New("the limit of WaitAtMost")

// limited returns a context that ends by WaitAtMost, if the request has that option.
func (m *Manager) limited(ctx context.Context, q *request) (context.Context, context.CancelFunc) {
	if q.atMost == 0 || q.limit == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, m.store.Now().Until(q.limit), errLimit)
}

// queue is the name of the queue that a request waits in. Readers have their own, so that
// they don't wait behind a writer of their own manager.
func (q *request) queue() string {
	if q.shared {
		return readersQueue(q.key)
	}
	return q.key.String()
}

func readersQueue(key txlock.Key) string { return key.String() + "\x00readers" }

// request checks a call before anything is sent.
func (m *Manager) request(ctx context.Context, verb string, key txlock.Key, opts []AcquireOption) (*request, error) {
	if ctx == nil {
		return nil, errors.New("lease: the call needs a context, got nil")
	}
	if err := key.Validate(); err != nil {
		return nil, err
	}
	q := &request{verb: verb, key: key, asked: m.store.Now(), target: exclusive{}, from: leaseutil.Owners(ctx), inside: m.isInside(ctx)}
	var err error
	if q.terms, err = m.terms(opts); err != nil {
		return nil, err
	}
	if err := q.identify(); err != nil {
		return nil, err
	}
	return q, m.open()
}

// terms are what the options ask for, over those of the manager.
func (m *Manager) terms(opts []AcquireOption) (terms, error) {
	t := m.options.terms
	for _, option := range opts {
		option.toAcquire(&t)
	}
	if err := t.check(); err != nil {
		return t, err
	}
	if m.options.renewEvery > t.ttl/2 {
		return t, fmt.Errorf("%w: TTL(%v) is less than twice the manager's RenewEvery(%v)", txlock.ErrInvalidOption, t.ttl, m.options.renewEvery)
	}
	return t, nil
}

// newHold makes a new entry for the list of holds. A hold is never asked for twice: its
// release may still be under way in the background.
func (q *request) newHold() (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return id, fmt.Errorf("lease: make an identifier: %w", err)
	}
	q.hold = holdOf(id)
	return id, nil
}

// needHold makes the entry for the list of holds before the first statement, unless there
// is one: a lease that is re-entered in this manager needs none.
func (q *request) needHold() (err error) {
	if q.hold == "" {
		_, err = q.newHold()
	}
	return err
}

// holdBegins is how all holds of this process begin.
var holdBegins = holdOf(uuid.UUID{})[:store.HoldBegins]

// holdOf writes an entry of a list of holds: a separator and an identifier of fixed
// length, without the separator. All holds of a process begin with the same characters,
// so that a restarted program recognises the holds of its predecessor as not its own.
func holdOf(id uuid.UUID) string {
	copy(id[:], processTag[:])
	return string(base64.RawURLEncoding.AppendEncode(append(make([]byte, 0, store.HoldLength), ';'), id[:]))
}

// processTag makes the first 8 characters of each hold of this process.
var processTag = func() (tag [6]byte) {
	_, _ = rand.Read(tag[:]) // which never returns an error
	return tag
}()

// process is the beginning of the names of owners that WithOwner doesn't name, for people
// who look: "web-3/4711/".
var process = procname.Process("/") + "/"

// processLabel is the default of WithLabel.
var processLabel = strings.ToValidUTF8(procname.Process(":"), "?")
