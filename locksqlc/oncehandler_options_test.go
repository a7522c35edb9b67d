package locksqlc_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// upload sends a file as mime/multipart does, with a new boundary each time.
func upload(t *testing.T, h http.Handler, key, content string) *httptest.ResponseRecorder {
	t.Helper()
	body := new(bytes.Buffer)
	form := multipart.NewWriter(body)
	part, err := form.CreateFormFile("receipt", "receipt.pdf")
	check(t, err)
	check(t, second(part.Write([]byte(content))))
	check(t, form.Close())
	r := httptest.NewRequest("POST", "/receipts", body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestOnceHandlerOfAForm: a form that is sent again has another boundary, and is the same request.
func TestOnceHandlerOfAForm(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		s := answers(pool, numbers(t, db), func(w http.ResponseWriter, r *http.Request) {
			file, _, err := r.FormFile("receipt")
			if err != nil {
				idempotency.Fail(r.Context(), err)
				return
			}
			w.WriteHeader(http.StatusCreated)
			if _, err := bytes.NewBufferString("kept").WriteTo(w); err != nil {
				t.Error(err)
			}
			if err := file.Close(); err != nil {
				t.Error(err)
			}
		})
		key := uniqueKey(t, "http").String()
		wantAnswer(t, "the first", upload(t, s, key, "a"), 201, "kept", false)
		wantAnswer(t, "again", upload(t, s, key, "a"), 201, "kept", true)
		wantAnswer(t, "another file", upload(t, s, key, "b"), 422, "already used", false)
		if n := s.calls.Load(); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
}

// TestOnceHandlerFingerprint: a program says itself what distinguishes its requests.
func TestOnceHandlerFingerprint(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		s := answers(pool, numbers(t, db), func(http.ResponseWriter, *http.Request) {},
			idempotency.FingerprintOf(func(_ *http.Request, body []byte) []byte { return bytes.TrimSpace(body) }))
		key := uniqueKey(t, "http").String()
		wantAnswer(t, "the first", request(s, "POST", key, "a"), 200, "", false)
		wantAnswer(t, "with a blank", request(s, "PUT", key, " a\n"), 200, "", true)
		wantAnswer(t, "another body", request(s, "POST", key, "b"), 422, "already used", false)
	})
}

// TestOnceHandlerStatuses: an answer whose status isn't kept is given, rolled back and not stored,
// and the next request is the first. One of 500 is kept if the program says so.
func TestOnceHandlerStatuses(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, table := newPool(t, db.Config(), true), numbers(t, db)
		var status atomic.Int32
		s := answers(pool, table, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) },
			idempotency.KeepStatuses(func(status int) bool { return status < 400 || status == 404 || status == 502 }))
		wantSum := func(what string, want int) {
			t.Helper()
			var sum int
			if err := pool.QueryRow("SELECT SUM(v) FROM " + table).Scan(&sum); err != nil || sum != want {
				t.Errorf("%s: the sum is %d, want %d, %v", what, sum, want, err)
			}
		}
		rows := count(t, pool, "SELECT COUNT(*) FROM "+table)
		wantSum("before", 0)
		done := 0
		for _, last := range []int32{404, 502, 201} {
			key := uniqueKey(t, "http").String()
			for _, passes := range []int32{409, 422, 503} {
				status.Store(passes)
				wantAnswer(t, "not kept", request(s, "POST", key, ""), int(passes), "", false)
				wantSum("not kept", done)
			}
			status.Store(last)
			wantAnswer(t, "kept", request(s, "POST", key, ""), int(last), "", false)
			done += rows
			wantSum("kept", done)
			wantAnswer(t, "repeated", request(s, "POST", key, ""), int(last), "", true)
			wantSum("repeated", done)
		}
	})
}
