package locktest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// world is a server, or what stands in for one.
type world interface {
	begin(actor int, options *sql.TxOptions) (transaction, error)
	readVersion(ctx context.Context, key txlock.Key) (uint64, error)
	holders(ctx context.Context, keys ...txlock.Key) ([]txlock.Holder, error)
}

// transaction is an open one with its locks.
type transaction interface {
	locks
	Snapshot() error // a plain read
	Savepoint(name string) error
	RollbackTo(name string) error
	Commit() error
	Rollback() error
	atMost(d time.Duration) locks
}

// locks is what txlock.Scope and its stand-in do.
type locks interface {
	Lock(ctx context.Context, key txlock.Key) (txlock.Grant, error)
	TryLock(ctx context.Context, key txlock.Key) (txlock.Grant, error)
	RLock(ctx context.Context, key txlock.Key) (txlock.Grant, error)
	TryRLock(ctx context.Context, key txlock.Key) (txlock.Grant, error)
	LockAll(ctx context.Context, keys ...txlock.Key) ([]txlock.Grant, error)
	LockAny(ctx context.Context, keys ...txlock.Key) (txlock.Grant, error)
	Held(key txlock.Key) (txlock.Grant, bool)
	Verify(ctx context.Context) error
	Version(ctx context.Context, key txlock.Key) (uint64, error)
	CompareAndBump(ctx context.Context, key txlock.Key, version uint64) error
}

// actor begins one transaction after the other. Its versions are those that it has seen.
type actor struct {
	number   int
	world    world
	keys     []txlock.Key
	tx       transaction
	versions map[int]uint64
}

// answer is what a call has returned: what it is in words, and tokens, whose numbers
// differ from world to world.
type answer struct {
	text   string
	tokens []keyToken
}

type keyToken struct {
	key   string
	token uint64
}

// names give tokens the same names in both worlds: those of a key are numbered as they
// come.
type names map[keyToken]int

func (n names) of(a answer) string {
	words := []string{a.text}
	for _, t := range a.tokens {
		if t.token == 0 {
			words = append(words, "no token")
			continue
		}
		if n[t] == 0 {
			last := keyToken{key: t.key}
			n[last]++
			n[t] = n[last]
		}
		words = append(words, fmt.Sprintf("token %d of %s", n[t], t.key))
	}
	return strings.Join(words, ", ")
}

// sentinels are what errors.Is looks for.
var sentinels = []struct {
	name string
	err  error
}{
	{"ErrBusy", txlock.ErrBusy},
	{"ErrWaitTimeout", txlock.ErrWaitTimeout},
	{"ErrDeadlock", txlock.ErrDeadlock},
	{"ErrStaleSnapshot", txlock.ErrStaleSnapshot},
	{"ErrTxDoomed", txlock.ErrTxDoomed},
	{"ErrConflict", txlock.ErrConflict},
	{"ErrLost", txlock.ErrLost},
	{"ErrNotHeld", txlock.ErrNotHeld},
	{"ErrUpgrade", txlock.ErrUpgrade},
	{"ErrNoTransaction", txlock.ErrNoTransaction},
	{"ErrInvalidKey", txlock.ErrInvalidKey},
	{"ErrInvalidOption", txlock.ErrInvalidOption},
	{"sql.ErrTxDone", sql.ErrTxDone},
}

// failed is the answer of an error.
func failed(err error) answer {
	if err == nil {
		return answer{text: "nil"}
	}
	var words []string
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			words = append(words, s.name)
		}
	}
	if txlock.Retryable(err) {
		words = append(words, "retryable")
	}
	if words == nil {
		words = []string{"another error"}
	}
	return answer{text: strings.Join(words, " ")}
}

func granted(grant txlock.Grant, err error) answer {
	if err != nil {
		return failed(err)
	}
	a := answer{tokens: []keyToken{{grant.Key().String(), grant.Token()}}}
	a.text = "exclusive"
	if grant.Shared() {
		a.text = "shared"
	}
	return a
}
