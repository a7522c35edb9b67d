package lease

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strconv"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/txlock"
)

// request is one call of Acquire or its likes.
type request struct {
	terms
	verb  string
	key   txlock.Key
	owner string
	named bool   // the owner may hold the lease already
	hold  string // for the list of holds, if it is granted
	asked instant

	target target
	shared bool
	drains bool // it is granted when the readers have gone
}

// queue is the name of the queue that a request waits in: readers don't wait behind
// a writer of their own process, which would bound their number only.
func (q *request) queue() string {
	if q.shared {
		return readersQueue(q.key)
	}
	return q.key.String()
}

func readersQueue(key txlock.Key) string { return key.String() + "\x00readers" }

// request checks a call before anything is sent.
func (m *Manager) request(ctx context.Context, verb string, key txlock.Key, opts []AcquireOption) (*request, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	q := &request{verb: verb, key: key, asked: now(), target: exclusive{}}
	var err error
	if q.terms, err = m.terms(opts); err != nil {
		return nil, err
	}
	if q.owner, q.named, err = ownerOf(ctx); err != nil {
		return nil, err
	}
	id, err := q.newHold()
	if err != nil {
		return nil, err
	}
	if !q.named {
		q.owner = process + id.String()
	}
	return q, m.open()
}

// terms are what a lease is asked for with the options.
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

// newHold makes an entry for the list of holds. One that was granted, and was given
// back, must not be asked for again: what gives it back may be under way still.
func (q *request) newHold() (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return id, fmt.Errorf("lease: make an identifier: %w", err)
	}
	q.hold = holdOf(id)
	return id, nil
}

// holdOf writes an entry of a list of holds: an identifier of fixed length behind
// a separator that is not in its alphabet.
func holdOf(id uuid.UUID) string { return ";" + base64.RawURLEncoding.EncodeToString(id[:]) }

const holdLength = 1 + 22

// process is how the owners that are not named begin, for people who look:
// "web-3/4711/".
var process = func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown" // nothing depends on it
	}
	if len(host) > 100 {
		host = host[:100]
	}
	return host + "/" + strconv.Itoa(os.Getpid()) + "/"
}()
