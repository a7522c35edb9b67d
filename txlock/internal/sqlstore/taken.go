package sqlstore

import (
	"database/sql"
	"sync"
)

// taken counts what managers have taken of each pool, which they share.
var taken = takings{of: make(map[*sql.DB]taking)}

// takings are the connections that are taken of pools. One of each is left to the program,
// who may hold what is waited for.
type takings struct {
	mu sync.Mutex
	of map[*sql.DB]taking
}

// taking is what is taken of a pool: half of it at most by each.
type taking struct {
	kept   int // to renew on, and to wait for a row to renew
	places int // turnstiles
}

// keep counts a connection that is kept, if it may be.
func (t *takings) keep(db *sql.DB) bool {
	return t.take(db, func(most int, of *taking) bool {
		of.kept++
		return of.kept <= most/2 && of.kept+of.places < most
	})
}

// queue counts a turnstile, if there may be one more beside so many that are kept, or are
// to be.
func (t *takings) queue(db *sql.DB, kept int) bool {
	return t.take(db, func(most int, of *taking) bool {
		of.places++
		return of.places <= most/2 && max(of.kept, kept)+of.places < most
	})
}

func (t *takings) giveBack(db *sql.DB) {
	t.take(db, func(_ int, of *taking) bool { of.kept--; return true })
}

func (t *takings) unqueue(db *sql.DB) {
	t.take(db, func(_ int, of *taking) bool { of.places--; return true })
}

// take changes what is taken of a pool, where the change is good.
func (t *takings) take(db *sql.DB, change func(most int, of *taking) bool) bool {
	most := db.Stats().MaxOpenConnections
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.of[db]
	if good := change(most, &of); !good && most > 0 {
		return false
	}
	if t.of[db] = of; of == (taking{}) {
		delete(t.of, db)
	}
	return true
}
