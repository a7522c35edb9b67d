package locktest_test

import (
	"context"
	sqldriver "database/sql/driver"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// This file runs programs on two databases of one server, whose pools send the same locks in
// different ways, side by side.

// way is a database with a way of its own, and what a program does there.
type way struct {
	*server
	actors [maxActors]*actor
	calls  [maxActors]chan answer // that have not returned
	said   [maxActors]string      // what the step's calls have come to, "" for none
	names  names
}

// oncer is a real scope.
type oncer interface {
	Once(ctx context.Context, key txlock.Key, options ...txlock.OnceOption) (bool, error)
}

// ways are two of them.
type ways struct {
	game                game
	all                 [2]*way
	programs, undecided int
}

// waysGame is that of transaction locks with more to begin with, and with what the stand-in
// doesn't do.
var waysGame = game{verbs: wayVerbs(), begin: "Begin", last: endOfLocks}

func wayVerbs() map[string]verb {
	verbs := maps.Clone(lockVerbs)
	verbs["Begin"] = verb{weight: 1, call: (*actor).begin, args: []string{
		"default", "default", "REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED", "SERIALIZABLE", "READ ONLY",
	}}
	// What it has locked when its limit ends stays locked only in a transaction that was open.
	all := verbs["LockAll"]
	all.args = []string{"", "long"}
	verbs["LockAll"] = all
	delete(verbs, "LockMixed") // of the same steps as LockAll and RLock
	verbs["Once"] = verb{weight: 4, keys: oneKey, args: limits, call: func(a *actor, s step) answer {
		first, err := a.limit(s).(oncer).Once(context.Background(), a.key(s))
		if err != nil {
			return failed(err)
		}
		return answer{text: fmt.Sprintf("first: %t", first)}
	}}
	verbs["Write"] = verb{weight: 4, call: func(a *actor, _ step) answer { return failed(a.tx.(serverTx).write(a.number)) }}
	verbs["COMMIT"] = verb{weight: 1, call: func(a *actor, s step) answer { return failed(a.tx.(serverTx).exec(s.verb)) }}
	return verbs
}

// TestWays compares the ways in which locks reach a server: with the BEGIN before them in
// one text, and after it; on MySQL by procedures, and without.
func TestWays(t *testing.T) {
	testdb.NeedsServer(t)
	t.Parallel()
	n := testdb.Long(*wayPrograms, 2000)
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL && testdb.WithoutProcedures() {
			continue // which leaves one way
		}
		other := otherWay(t, engine)
		t.Run(string(engine)+"/planted", func(t *testing.T) {
			t.Parallel()
			w := newWays(t, testdb.Open(t, engine), other, wrongReply)
			for number := range uint64(100) {
				if p := w.program(number); w.run(p, w.keys(t, p)) != "" {
					return
				}
			}
			t.Error("programs don't notice that a lock's reply is wrong")
		})
		for lane := range lanes {
			t.Run(fmt.Sprintf("%s/%d", engine, lane), func(t *testing.T) {
				t.Parallel()
				w := newWays(t, testdb.Open(t, engine), other, one)
				for i := lane; i < n && !t.Failed(); i += lanes {
					number := *seed + uint64(i)
					p := w.program(number)
					if difference := w.differ(t, p); difference != "" {
						t.Errorf("program %d on %s, in short:\n%s", number, engine, shrunk(p, difference, func(p program) string { return w.differ(t, p) }))
					}
				}
				if w.undecided*5 > w.programs+5 {
					t.Errorf("of %d programs %d were not compared to the end", w.programs, w.undecided)
				}
				t.Logf("%d programs, %d not to the end", w.programs, w.undecided)
			})
		}
	}
}

// wrongReply is a bug, planted into one of the ways: the reply isn't the token of the row.
func wrongReply(query string) string {
	return strings.Replace(query, "token = LAST_INSERT_ID(IF(", "token = 1 + LAST_INSERT_ID(IF(", 1)
}

// otherWay makes the database of the second way, without procedures.
func otherWay(t *testing.T, engine testdb.Engine) *testdb.DB {
	t.Helper()
	db := testdb.Shared(t, engine).Open(t)
	if engine == testdb.MySQL {
		db.DropProcedures(t)
	}
	return db
}

// newWays opens the pools. The first way's are those of a program. The second way's driver
// is wrapped, so that nothing is sent with BEGIN, and its texts are changed.
func newWays(t *testing.T, first, second *testdb.DB, change func(query string) string) *ways {
	t.Helper()
	return &ways{game: waysGame, all: [2]*way{
		{server: newServer(t, first, guarded)},
		{server: newServer(t, second, func(base sqldriver.Connector) sqldriver.Connector {
			return guarded(testdb.Wrapped(base, func(c testdb.Conn) sqldriver.Conn { return testdb.Edited{Conn: c, Edit: change} }))
		})},
	}}
}

// one leaves a text as it is.
func one(query string) string { return query }

// program is the random program of that number.
func (w *ways) program(number uint64) program {
	p := randomProgram(rand.New(rand.NewPCG(number, 1)), w.game)
	for i, kind := range p.keys {
		if kind == fresh { // of which only the first way makes the row before BEGIN
			p.keys[i] = ensured
		}
	}
	return p
}

// differ runs a program, and returns what has happened if the ways differ each time: what
// depends on who comes first doesn't.
func (w *ways) differ(t *testing.T, p program) (difference string) {
	t.Helper()
	for range 3 {
		if difference = w.run(p, w.keys(t, p)); difference == "" {
			return ""
		}
	}
	return difference
}

// keys makes the keys of a program in both databases.
func (w *ways) keys(t *testing.T, p program) []txlock.Key {
	t.Helper()
	keys, there := w.all[0].keys(t, p)
	must(t, txlock.Ensure(t.Context(), w.all[1].db.Admin(), there...))
	return keys
}

// run runs a program, and returns what has happened if the ways differ.
func (w *ways) run(p program, keys []txlock.Key) string {
	w.programs++
	for _, way := range w.all {
		way.names, way.calls = names{}, [maxActors]chan answer{}
		for i := range maxActors {
			way.actors[i] = &actor{number: i, world: way, keys: keys, versions: make(map[int]uint64)}
		}
		defer func() { end(way.actors, way.calls) }()
	}
	var log strings.Builder
	looked := false
	for _, s := range slices.Concat(p.steps, w.game.last(p)) {
		if w.all[0].calls[s.actor] != nil || !w.game.possible(s, w.all[0].actors[s.actor]) {
			continue
		}
		w.step(s)
		fmt.Fprintln(&log, s)
		if differs := w.report(&log); differs && (looked || w.victims() || w.overtaken()) {
			w.undecided++
			return ""
		} else if differs {
			return log.String()
		}
		looked = looked || s.looks(w.all[0].server, p)
	}
	rows := [2]string{w.all[0].rows(keys), w.all[1].rows(keys)}
	if rows[0] != rows[1] {
		return fmt.Sprintf("%srows:\n%s--- the other way:\n%s", &log, rows[0], rows[1])
	}
	return ""
}

// step makes a step in both ways, and returns when the same calls have returned in both, or
// when that takes too long.
func (w *ways) step(s step) {
	for _, way := range w.all {
		way.said = [maxActors]string{}
		returned := make(chan answer, 1)
		way.calls[s.actor] = returned
		go func() { returned <- w.game.verbs[s.verb].call(way.actors[s.actor], s) }()
	}
	limited := -1
	if s.limited() {
		limited = s.actor
	}
	for deadline := time.Now().Add(2 * patience); ; {
		for _, way := range w.all {
			way.settle(limited)
		}
		if w.all[0].waiting() == w.all[1].waiting() || time.Now().After(deadline) {
			return
		}
	}
}

// report writes what the calls of a step have come to, and tells whether that differs.
func (w *ways) report(log *strings.Builder) (differs bool) {
	for i, said := range w.all[0].said {
		other := w.all[1].said[i]
		switch {
		case said != other:
			fmt.Fprintf(log, "    T%d: one way:   %s\n        the other: %s\n", i+1, said, other)
			differs = true
		case said != "":
			fmt.Fprintf(log, "    T%d: %s\n", i+1, said)
		}
	}
	return differs
}

// victims tells whether both ways had a deadlock. Whom it ends is the server's choice.
func (w *ways) victims() bool {
	for _, way := range w.all {
		if !slices.ContainsFunc(way.said[:], func(said string) bool { return strings.HasPrefix(said, "ErrDeadlock") }) {
			return false
		}
	}
	return true
}

// overtaken tells whether each way has let one through that waits in the other. Who has
// waited to insert a row that wasn't there goes on with all others that have.
func (w *ways) overtaken() bool {
	var ahead [2]bool
	for i, waits := range w.all[0].waiting() {
		other := w.all[1].calls[i] != nil
		ahead[0], ahead[1] = ahead[0] || other && !waits, ahead[1] || waits && !other
	}
	return ahead[0] && ahead[1]
}

// settle finds out of each call whether it waits or has returned. A limited one returns.
func (w *way) settle(limited int) {
	for i, returned := range w.calls {
		if returned == nil {
			continue
		}
		var a answer
		var err error
		done := true
		if i == limited {
			select {
			case a = <-returned:
			case <-time.After(6 * patience):
				done = false
			}
		} else {
			a, done, err = w.waits(i, returned)
		}
		switch {
		case err != nil:
			w.said[i] = err.Error()
		case done:
			w.said[i], w.calls[i] = w.names.of(a), nil
		default:
			w.said[i] = "waits"
		}
	}
}

// waiting tells whose calls have not returned.
func (w *way) waiting() (who [maxActors]bool) {
	for i, returned := range w.calls {
		who[i] = returned != nil
	}
	return who
}

// rows are those that a program has left: of the tables of locks, of Once, and of its own.
func (w *way) rows(keys []txlock.Key) string {
	var b strings.Builder
	for i, key := range keys {
		var token uint64
		var conn int64
		var owner string
		query, arg := "SELECT token, conn_id, owner FROM lockstep_locks WHERE name = ?", any(key.String())
		if key.Hashed() {
			query, arg = "SELECT token, conn_id, owner FROM lockstep_centers WHERE slot = ?", key.Slot()
		}
		err := w.db.Admin().QueryRow(query, arg).Scan(&token, &conn, &owner)
		if token == 0 { // never granted: whoever has made the row says nothing
			conn, owner = 0, ""
		}
		fmt.Fprintf(&b, "k%d: T%d, %q, %s, %v\n", i, slices.Index(w.ids, conn)+1, owner, w.names.of(answer{tokens: []keyToken{{key.String(), token}}}), err)
		var once int
		err = w.db.Admin().QueryRow("SELECT COUNT(*) FROM lockstep_once WHERE name = ?", key.String()).Scan(&once)
		fmt.Fprintf(&b, "k%d: %d, %v\n", i, once, err)
	}
	var written string
	err := w.db.Admin().QueryRow("SELECT GROUP_CONCAT(written ORDER BY n) FROM " + w.table).Scan(&written)
	fmt.Fprintf(&b, "written: %s, %v\n", written, err)
	return b.String()
}
