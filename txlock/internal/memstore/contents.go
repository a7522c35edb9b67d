package memstore

import "github.com/dca00107/lockstep/txlock/internal/store"

// Contents is what a row of the table of leases says, in microseconds of the server's
// clock: for tests to compare with a database.
type Contents struct {
	Owner, Holds string
	Note         string
	Asked        int64 // when somebody asked the owner to give it up, 0 for never
	Why          string
	Token        uint64
	TTL, Expires int64
	Guards       uint64
	Use          store.Use
	Session      uint64 // of the transaction that has guarded or acquired it last
}

// Rows returns the rows as they are committed, and those that transactions have locked as
// these have them.
func (db *Server) Rows() (committed, locked map[store.Row]Contents) {
	db.mu.Lock()
	defer db.mu.Unlock()
	committed, locked = make(map[store.Row]Contents, len(db.rows)), make(map[store.Row]Contents, len(db.locks))
	for at, r := range db.rows {
		committed[at] = r.contents()
	}
	for at, l := range db.locks {
		r, _ := l.holder.current(at)
		locked[at] = r.contents()
	}
	return committed, locked
}

func (r *row) contents() Contents {
	return Contents{
		Owner: r.owner, Note: r.note, Asked: r.asked, Why: r.why, Holds: r.holds, Token: r.token, TTL: r.ttl, Expires: r.expires,
		Guards: r.guards, Use: r.use, Session: r.session,
	}
}
