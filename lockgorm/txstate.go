package lockgorm

import (
	"context"
	"database/sql"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"weak"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/txlock"
)

// txState is what the plugin knows about one open transaction, for as long as somebody has
// its *sql.Tx.
type txState struct {
	mu   sync.Mutex
	read map[Version]bool // versions that GORM has loaded
	all  bool             // GORM has loaded more than can be remembered
	own  map[Version]bool // versions that the transaction has written
	anys []int64          // by how much it has raised versions that it doesn't know
	keys []compared       // keys of Optimistic
}

// compared is a key of Optimistic, and how to compare its version.
type compared struct {
	scope   *txlock.Scope
	key     txlock.Key
	compare func(ctx context.Context) error
}

// mostRead limits how many versions of each kind are remembered for one transaction.
const mostRead = 10_000

// transactions holds a *txState for each *sql.Tx.
var transactions sync.Map

// txStateOf returns what is known about the transaction of tx, or nil.
func txStateOf(tx *gorm.DB) *txState {
	handle := handleOf(tx)
	if handle == nil {
		return nil
	}
	known, _ := transactions.Load(weak.Make(handle))
	k, _ := known.(*txState)
	return k
}

// learn does what txStateOf does, and makes a txState if there is none. It returns nil if tx
// isn't in a transaction, or not in a *sql.Tx.
func learn(tx *gorm.DB) *txState {
	handle := handleOf(tx)
	if handle == nil {
		return nil
	}
	id := weak.Make(handle)
	k, loaded := transactions.LoadOrStore(id, &txState{read: make(map[Version]bool), own: make(map[Version]bool)})
	if !loaded {
		runtime.AddCleanup(handle, func(id weak.Pointer[sql.Tx]) { transactions.Delete(id) }, id)
	}
	return k.(*txState)
}

// handleOf returns the *sql.Tx of a transaction, or nil.
func handleOf(tx *gorm.DB) *sql.Tx {
	pool, err := transactionOf(tx)
	if err != nil {
		return nil
	}
	handle, _ := pool.(*sql.Tx)
	return handle
}

// note remembers versions that were loaded.
func (k *txState) note(loaded []Version) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range loaded {
		if k.all = k.all || len(k.read) == mostRead; !k.all {
			k.read[v] = true
		}
	}
}

// mayDiffer reports whether another run of the transaction may end without this conflict:
// GORM has read the compared version in the transaction, and somebody else has written
// the one that is there now. If the transaction has written either of them itself, and
// perhaps undone it by a savepoint, another run would do the same again.
func mayDiffer(db *gorm.DB, c conflict) bool {
	k := txStateOf(db)
	if k == nil {
		_, err := transactionOf(db)
		return err == nil && handleOf(db) == nil // nothing is known about a transaction of another kind
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return (k.all || k.read[c.loaded]) && !k.own[c.loaded] && !k.own[c.now] &&
		!slices.ContainsFunc(k.anys, func(step int64) bool { return c.loaded.raisedBy(step) == c.now || c.now.raisedBy(step) == c.loaded })
}

// noteOwn remembers versions that a statement has written, unless the transaction ends
// with the statement.
func noteOwn(db *gorm.DB, written []Version, raisedBy ...int64) {
	if hasOwn(db) {
		return
	}
	k := learn(db)
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.own)+len(k.anys) < mostRead {
		for _, v := range written {
			k.own[v] = true
		}
		k.anys = append(k.anys, raisedBy...)
	}
}

// noteRead remembers the versions that a query has loaded in a transaction.
func noteRead(db *gorm.DB) {
	stmt := db.Statement
	if db.Error != nil || db.DryRun || stmt.Schema == nil {
		return
	}
	field := slices.IndexFunc(stmt.Schema.Fields, isVersion)
	if field < 0 && len(stmt.Joins) == 0 {
		return
	}
	k := learn(db)
	if k == nil {
		return
	}
	if len(stmt.Joins) > 0 {
		k.noteAll() // models are in fields, too
		return
	}
	v := versioned{field: stmt.Schema.Fields[field]}
	v.collect(stmt, reflect.ValueOf(stmt.Dest))
	k.note(v.loaded)
}

// noteRows notes that the program reads rows itself, which may hold versions.
func noteRows(db *gorm.DB) {
	if k := learn(db); k != nil && !db.DryRun {
		k.noteAll()
	}
}

func (k *txState) noteAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = true
}

// compareAtEnd keeps a key of Optimistic until forget is called.
func (k *txState) compareAtEnd(c compared) (forget func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = append(k.keys, c)
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.keys = slices.DeleteFunc(k.keys, func(other compared) bool { return other.key == c.key })
	}
}

// compares returns how to compare the version of a key, if Optimistic has that key, or a
// hashed key with the same center lock.
func (k *txState) compares(key txlock.Key) (c compared, ok bool) {
	key, _ = inner.Asked(key)
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.keys, func(c compared) bool {
		return c.key == key || c.key.Hashed() && key.Hashed() && c.key.Slot() == key.Slot()
	})
	if i < 0 {
		return compared{}, false
	}
	return k.keys[i], true
}
