package shards

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func wants(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want %v", what, err, w)
		}
	}
}

func second[P any](_ P, err error) error { return err }

var errRefused = errors.New("refused")

// refusing is a connector to a server that is away.
type refusing struct{}

func (refusing) Connect(context.Context) (driver.Conn, error) { return nil, errRefused }
func (refusing) Driver() driver.Driver                        { return nil }

func refused(t *testing.T) *sql.DB {
	t.Helper()
	pool := sql.OpenDB(refusing{})
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// unreachable is a set of three databases that are away.
func unreachable(t *testing.T, options ...Option) *Shards {
	t.Helper()
	pools := make(map[string]*sql.DB)
	for _, name := range abc {
		pools[name] = refused(t)
	}
	s, err := New(pools, options...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBadSets(t *testing.T) {
	t.Parallel()
	pool := refused(t)
	for what, make := range map[string]func() (*Shards, error){
		"no databases":        func() (*Shards, error) { return New(nil) },
		"a nil pool":          func() (*Shards, error) { return New(map[string]*sql.DB{"a": nil}) },
		"an empty name":       func() (*Shards, error) { return New(map[string]*sql.DB{"": pool}) },
		"a comma":             func() (*Shards, error) { return New(map[string]*sql.DB{"a,b": pool}) },
		"no set":              func() (*Shards, error) { return New(map[string]*sql.DB{"-": pool}) },
		"RouteBy a space":     func() (*Shards, error) { return New(map[string]*sql.DB{"a": pool}, RouteBy("a b", txlock.Key.String)) },
		"RouteBy no name":     func() (*Shards, error) { return New(map[string]*sql.DB{"a": pool}, RouteBy("", txlock.Key.String)) },
		"RouteBy no function": func() (*Shards, error) { return New(map[string]*sql.DB{"a": pool}, RouteBy("a", nil)) },
	} {
		wants(t, what, second(make()), txlock.ErrInvalidOption)
	}
}

// TestChangeOfNone proves that a change from or to a nil set is refused.
func TestChangeOfNone(t *testing.T) {
	t.Parallel()
	s, err := New(map[string]*sql.DB{"a": refused(t)})
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(context.Context, *Shards, *Shards, ...Lost) error{"Begin": Begin, "Finish": Finish} {
		for _, sets := range [][2]*Shards{{s, nil}, {nil, s}, {nil, nil}} {
			wants(t, what, change(t.Context(), sets[0], sets[1]), txlock.ErrInvalidOption)
		}
	}
}

// TestBeginOnACluster has a database on a multi-primary cluster.
func TestBeginOnACluster(t *testing.T) {
	t.Parallel()
	pools := make(map[string]*sql.DB)
	for _, name := range abc {
		db, mock, err := sqlmock.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		mock.ExpectQuery("ShardRecord").WillReturnRows(sqlmock.NewRows([]string{"result", "done_us"}).AddRow("a,b,c", 1))
		mock.ExpectQuery("SHOW GLOBAL VARIABLES").WillReturnRows(sqlmock.NewRows([]string{"name", "value"}).AddRow("wsrep_on", "ON"))
		pools[name] = db // which expects no more
	}
	from, err := New(pools)
	if err != nil {
		t.Fatal(err)
	}
	to, err := New(map[string]*sql.DB{"a": pools["a"], "b": pools["b"]})
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "Begin", Begin(t.Context(), from, to), schema.ErrMultiPrimary)
}
