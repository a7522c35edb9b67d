package locktest_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// lanes are how many programs run beside each other: they wait most of their time.
const lanes = 4

var (
	programs    = flag.Int("programs", 60, "how many programs run on each server; LOCKSTEP_LONG=1 makes it 5000")
	wayPrograms = flag.Int("ways", 30, "how many programs compare the ways to each server; LOCKSTEP_LONG=1 makes it 2000")
	seed        = flag.Uint64("seed", 1, "the number of the first program")
)

// TestLocks runs random programs of transaction locks on servers and on a Kit, side by side, and
// compares what the calls return. A program is data: see program_test.go. What its steps do is
// the same code on both: see actors_test.go. A Kit does as MariaDB: on MySQL programs read
// nothing, since a stale snapshot is no end there.
func TestLocks(t *testing.T) { compare(t, locksGame) }

func compare(t *testing.T, g game) {
	testdb.NeedsServer(t)
	t.Parallel()
	n := *programs
	if os.Getenv("LOCKSTEP_LONG") != "" {
		n = 5000
	}
	for _, engine := range testdb.Engines() {
		for lane := range lanes {
			t.Run(fmt.Sprintf("%s/%d", engine, lane), func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				if engine == testdb.MariaDB && !db.HasSnapshotIsolation(t) {
					t.Skip("this MariaDB leaves the comparison with the snapshot to the library, the stand-in doesn't")
				}
				s := newServer(t, db, guarded)
				defer func() {
					if s.undecided*10 > s.programs+10 {
						t.Errorf("of %d programs %d were not compared to the end", s.programs, s.undecided)
					}
					t.Logf("%d programs, %d not to the end", s.programs, s.undecided)
				}()
				for i := lane; i < n && !t.Failed(); i += lanes {
					number := *seed + uint64(i)
					p := forKit(randomProgram(rand.New(rand.NewPCG(number, 0)), g), engine)
					if difference := g.differs(t, s, p); difference != "" {
						t.Errorf("program %d on %s, in short:\n%s", number, engine, shrunk(p, difference, func(p program) string { return g.differs(t, s, p) }))
					}
				}
			})
		}
	}
}

// forKit leaves out of a program what a Kit doesn't do as the server: it makes the row of a key
// at once, as a lock does that begins its transaction.
func forKit(p program, engine testdb.Engine) program {
	for i, kind := range p.keys {
		if kind == fresh {
			p.keys[i] = ensured
		}
	}
	if engine == testdb.MySQL {
		for i := range p.steps {
			switch s := &p.steps[i]; {
			case s.verb == "Begin":
				s.arg = "READ COMMITTED"
			case s.arg == "short" && (s.verb == "LockAll" || s.verb == "LockMixed"):
				s.arg = "" // with a limit they lock one by one, and what they have got stays written
			}
		}
	}
	return p
}

// shrunk returns what happens in the smallest part of a program that still differs.
func shrunk(p program, difference string, differs func(program) string) string {
	end := time.Now().Add(2 * time.Minute)
	p = shrink(p, func(p program) bool {
		if time.Now().After(end) {
			return false
		}
		d := differs(p)
		if d != "" {
			difference = d
		}
		return d != ""
	})
	return p.String() + "\n" + difference
}

// differs runs a program on both, and returns what has happened where they differ.
func (g game) differs(t *testing.T, s *server, p program) string {
	t.Helper()
	keys, _ := s.keys(t, p)
	s.programs++
	bubble, found := make(chan func()), make(chan string, 1)
	go func() {
		defer close(bubble)
		found <- newDriver(t, g, s, keys, bubble).run(p)
	}()
	synctest.Test(t, func(*testing.T) {
		for f := range bubble {
			f()
		}
	})
	return <-found
}
