package main

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// TestCores proves on the servers that the cores do to a transaction what the judge takes them to do, however they are written: a
// savepoint made before is there afterwards, or is not.
func TestCores(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Fresh(t, engine)
		must(t, install(t.Context(), db.Admin(), engine))
		pool := db.ConnectAdmin(t, func(cfg *mysql.Config) { cfg.MultiStatements = true })
		pool.SetMaxIdleConns(0) // a session for each, of which nothing stays
		taken := make(map[string]int)
		for kind, texts := range cores {
			for _, text := range texts {
				if strings.Contains(text, "%s") {
					text = fmt.Sprintf(text, spots[0])
				}
				for _, l := range layers {
					if l.only != "" && l.only != engine {
						continue
					}
					for _, prepared := range []bool{false, true} {
						p := phrase{kind: kind, texts: l.write(text), prepared: prepared}
						if goesOn, err := sent(t, pool, p); err == nil {
							taken[kind+": "+text]++
							testdb.ErrorIf(t, goesOn == (kind == coreEnds), "a %q goes on: %t, after %q", kind, goesOn, p.texts)
						}
					}
				}
			}
		}
		for _, kind := range sortedKeys(cores) {
			for _, text := range cores[kind] {
				if strings.Contains(text, "%s") {
					text = fmt.Sprintf(text, spots[0])
				}
				// In a transaction these are refused, but where a handler swallows that.
				refused := []string{"XA START 'chaos'", "XA ROLLBACK 'chaos'", "ROLLBACK TO SAVEPOINT never_made"}
				testdb.ErrorIf(t, taken[kind+": "+text] == 0 && !slices.Contains(refused, text), "%q was taken in no form", text)
			}
		}
	})
}

// sent sends a phrase in a transaction, and tells whether that goes on.
func sent(t *testing.T, pool *sql.DB, p phrase) (goesOn bool, err error) {
	t.Helper()
	tx := leasetest.Got(pool.BeginTx(t.Context(), nil))(t)
	defer func() { _ = tx.Rollback() }() // it may be over
	for _, text := range []string{"UPDATE counters SET token = token WHERE name = 'lock:a'", "SAVEPOINT mark"} {
		_, err := tx.ExecContext(t.Context(), text)
		must(t, err)
	}
	if err := p.send(t.Context(), tx); err != nil {
		return false, err
	}
	_, released := tx.ExecContext(t.Context(), "RELEASE SAVEPOINT mark")
	var server *mysql.MySQLError
	testdb.FatalIf(t, released != nil && (!errors.As(released, &server) || server.Number != 1305), "%q: %v", p.texts, released)
	return released == nil, nil
}

// TestPhrases proves that the grammar makes all kinds of statements, in all layers that
// the client's server and connection take, and no other.
func TestPhrases(t *testing.T) {
	t.Parallel()
	for _, engine := range []testdb.Engine{testdb.MariaDB, testdb.MySQL} {
		for _, multi := range []bool{false, true} {
			w := &worker{client: &client{clientConfig: clientConfig{Engine: engine}, multi: multi}, Rand: rand.New(rand.NewPCG(1, 2))}
			kinds := make(map[string]int)
			var all strings.Builder
			for range 5000 {
				p := w.phrase(spots[1])
				kinds[p.kind]++
				all.WriteString(strings.Join(p.texts, "\n") + "\n")
			}
			testdb.ErrorIf(t, len(kinds) != len(cores), "%v", kinds)
			for part, want := range map[string]bool{
				"/*! ": true, "/*m!": false, "EXECUTE careless": true, "CALL chaos_swallow('y')": true, "%": false,
				"BEGIN NOT ATOMIC ": engine == testdb.MariaDB, "SET STATEMENT": engine == testdb.MariaDB, "\nDO 1; ": multi,
			} {
				testdb.ErrorIf(t, strings.Contains(all.String(), part) != want, "%s, multi %t: it has %q: %t", engine, multi, part, !want)
			}
		}
	}
}
