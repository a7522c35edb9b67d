package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/examples/internal/scratch"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
)

var check, wants = leasetest.Must, leasetest.Wants

func TestMain(m *testing.M) { testdb.Main(m) }

// eachEngine runs a test on every engine, with the DSN of an administrator.
func eachEngine(t *testing.T, test func(t *testing.T, dsn string)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		test(t, testdb.Shared(t, engine).Config().FormatDSN())
	})
}

// TestExample proves that each payment is made once and each message counts once,
// although both come several times.
func TestExample(t *testing.T) {
	eachEngine(t, func(t *testing.T, dsn string) {
		var out bytes.Buffer
		b, err := onServer(t.Context(), dsn, &out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		t.Log(out.String())
		if b.received <= payments*senders {
			t.Errorf("%d requests: no client had to repeat one", b.received)
		}
	})
}

// TestRefusals proves that what is refused is refused again, and needs a new key.
func TestRefusals(t *testing.T) {
	eachEngine(t, func(t *testing.T, dsn string) {
		database, err := scratch.New(t.Context(), dsn, ddl)
		check(t, err)
		t.Cleanup(func() { check(t, database.Drop()) })
		db, err := locksqlc.Open(database.DSN())
		check(t, err)
		defer db.Close()
		if _, err := db.Exec("INSERT INTO accounts VALUES (1, 10, 0), (2, 0, 0)"); err != nil {
			t.Fatal(err)
		}
		s := NewService(db)
		for _, c := range []struct {
			key, body string
			status    int
		}{
			{"a", `{"Payer": 1, "Payee": 2, "Amount": 11}`, http.StatusPaymentRequired},
			{"a", `{"Payer": 1, "Payee": 2, "Amount": 11}`, http.StatusPaymentRequired},
			{"a", `{"Payer": 1, "Payee": 2, "Amount": 10}`, http.StatusUnprocessableEntity},
			{"b", `{"Payer": 1, "Payee": 2, "Amount": 10}`, http.StatusCreated},
			{"c", `{"Payer": 1, "Payee": 2}`, http.StatusUnprocessableEntity},
			{"d", `{"Payer": 3, "Payee": 2, "Amount": 1}`, http.StatusServiceUnavailable},
			{"", `{"Payer": 1, "Payee": 2, "Amount": 1}`, http.StatusBadRequest},
		} {
			r, w := httptest.NewRequest("POST", "/payments", strings.NewReader(c.body)), httptest.NewRecorder()
			if c.key != "" {
				r.Header.Set("Idempotency-Key", c.key)
			}
			s.ServeHTTP(w, r)
			if w.Code != c.status {
				t.Errorf("%s with the key %q: %d %s, want %d", c.body, c.key, w.Code, w.Body, c.status)
			}
		}
	})
}

// TestStart proves that the program runs on the server that it is given, and says what it
// needs where there is none.
func TestStart(t *testing.T) {
	t.Parallel()
	wants(t, "start", start(t.Context(), func(string) string { return "" }, io.Discard), errNoServer)
	err := start(t.Context(), func(string) string { return "not a data source name" }, io.Discard)
	leasetest.Fails(t, "start", err, "LOCKSTEP_MARIADB_DSN")
}

// TestCheckFindsWhatDoesNotHold proves that what was done twice, or never, is found.
func TestCheckFindsWhatDoesNotHold(t *testing.T) {
	t.Parallel()
	const sum = payments * (payments + 1) / 2
	for name, change := range map[string]func(b *books){
		"twice":       func(b *books) { b.payments++ },
		"never":       func(b *books) { b.paid-- },
		"points":      func(b *books) { b.points++ },
		"lost money":  func(b *books) { b.total-- },
		"nothing bad": nil,
	} {
		b := books{payments: payments, paid: sum, points: sum, total: accounts * balance}
		if change != nil {
			change(&b)
		}
		if err := b.check(); (err != nil) != (change != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
