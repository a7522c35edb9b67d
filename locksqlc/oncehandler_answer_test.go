package locksqlc_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// TestOnceHandlerTellsTheTruth: what was rolled back is no success, what was committed is
// not nothing, and what the handler itself has met says nothing of the key.
func TestOnceHandlerTellsTheTruth(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, way := numbers(t, db), ""
		s := answers(pool, table, func(w http.ResponseWriter, r *http.Request) {
			switch way {
			case "late":
				w.WriteHeader(http.StatusCreated)
				idempotency.Fail(r.Context(), errors.New("broken"))
			case "mismatch":
				idempotency.Fail(r.Context(), fmt.Errorf("another: %w", txlock.ErrMismatch))
			case "timeout":
				idempotency.Fail(r.Context(), fmt.Errorf("another: %w", txlock.ErrWaitTimeout))
			case "status":
				w.WriteHeader(0)
			case "commit":
				if err := locksqlc.TxOf(r.Context()).Commit(); err != nil {
					t.Error(err)
				}
			}
		})
		key := uniqueKey(t, "http").String()
		for _, way = range []string{"late", "mismatch", "timeout"} {
			wantAnswer(t, way, request(s, "POST", key, ""), 503, "no answer", false)
		}
		way = "status"
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a status of 0 is answered")
				}
			}()
			request(s, "POST", key, "")
		}()
		wantCount(t, pool, 0, "SELECT v FROM "+table)
		way = "commit"
		wantAnswer(t, way, request(s, "POST", key, ""), 503, "no answer", false)
		wantAnswer(t, "again", request(s, "POST", key, ""), 500, "was carried out", false)
		idle(t, pool)
	})
}

// TestOnceHandlerLateHeaders: what a handler sets behind the status is no header of the answer, as
// net/http has it, but for a trailer.
func TestOnceHandlerLateHeaders(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		s := httptest.NewServer(answers(newPool(t, db.Config(), true), numbers(t, db), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/early")
			w.Header().Set("Trailer", "Late")
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("Content-Type", "text/late")
			w.Header().Set("Location", "/late")
			w.Header().Set("Late", "trailer")
		}))
		defer s.Close()
		key := uniqueKey(t, "http").String()
		for _, again := range []bool{false, true} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, nil)
			check(t, err)
			r.Header.Set("Idempotency-Key", key)
			answer, err := s.Client().Do(r)
			check(t, err)
			_, err = io.Copy(io.Discard, answer.Body)
			check(t, errors.Join(err, answer.Body.Close()))
			if kind, place := answer.Header.Get("Content-Type"), answer.Header.Get("Location"); kind != "text/early" || place != "" {
				t.Errorf("again=%t: the headers are %q and %q", again, kind, place)
			}
			if late := answer.Trailer.Get("Late"); !again && late != "trailer" {
				t.Errorf("the trailer is %q", late)
			}
		}
	})
}

// TestOnceHandlerOfAForm: a form that is sent again has another boundary, and is the same request.
// Its files are gone with the request, as net/http has it.
func TestOnceHandlerOfAForm(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		name := ""
		s := answers(newPool(t, db.Config(), true), numbers(t, db), func(w http.ResponseWriter, r *http.Request) {
			check(t, r.ParseMultipartForm(0))
			file, err := r.MultipartForm.File["receipt"][0].Open()
			check(t, err)
			name = file.(*os.File).Name()
			check(t, file.Close())
			w.WriteHeader(http.StatusCreated)
			check(t, second(io.WriteString(w, "kept")))
		}, idempotency.MaxBody(20<<20))
		key, large := uniqueKey(t, "http").String(), strings.Repeat("x", 11<<20) // ParseMultipartForm keeps 10 MiB in memory
		wantAnswer(t, "the first", upload(t, s, key, large), 201, "kept", false)
		if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file %q is still there: %v", name, err)
		}
		wantAnswer(t, "again", upload(t, s, key, large), 201, "kept", true)
		wantAnswer(t, "another file", upload(t, s, key, "b"), 422, "already used", false)
		if n := s.calls.Load(); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
}

// TestOnceHandlerKeepsHeaders: those of handlers around it stay, and are repeated byte by
// byte.
func TestOnceHandlerKeepsHeaders(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		s := answers(pool, numbers(t, db), func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Content-Type", "changed")
			w.Header().Add("Vary", "Accept")
			w.Header().Set("Content-Disposition", "attachment; filename=\"caf\xe9\"")
			w.Header().Del("X-Outer")
		})
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Origin")
			w.Header().Set("X-Outer", "1")
			s.ServeHTTP(w, r)
		})
		key := uniqueKey(t, "http").String()
		for _, replayed := range []bool{false, true} {
			w := request(outer, "POST", key, "")
			wantAnswer(t, "the answer", w, 200, "", replayed)
			if got := fmt.Sprintf("%q %q", w.Header()["Vary"], w.Header()["Content-Disposition"]); got != `["Origin" "Accept"] ["attachment; filename=\"caf\xe9\""]` {
				t.Errorf("replayed %t: %s", replayed, got)
			}
			if !replayed && w.Header().Get("X-Outer") != "" {
				t.Error("the handler can't remove a header")
			}
		}
	})
}

// TestOnceHandlerWithoutTheBody refuses a request whose body somebody has read before: it
// would be the same as any other.
func TestOnceHandlerWithoutTheBody(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		s := answers(pool, numbers(t, db), func(http.ResponseWriter, *http.Request) {})
		r := httptest.NewRequest("POST", "/", strings.NewReader("a=1"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Idempotency-Key", uniqueKey(t, "http").String())
		check(t, r.ParseForm())
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		wantAnswer(t, "a form that was parsed", w, 500, "Nothing was done", false)
		if err := s.last.Load(); err == nil || !strings.Contains((*err).Error(), "was read before") {
			t.Errorf("told %v", err)
		}
	})
}

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
		done := 0
		for _, last := range []int32{404, 502, 201} {
			key := uniqueKey(t, "http").String()
			for _, passes := range []int32{409, 422, 503} {
				status.Store(passes)
				wantAnswer(t, "not kept", request(s, "POST", key, ""), int(passes), "", false)
				wantCount(t, pool, done, "SELECT v FROM "+table)
			}
			status.Store(last)
			wantAnswer(t, "kept", request(s, "POST", key, ""), int(last), "", false)
			done++
			wantCount(t, pool, done, "SELECT v FROM "+table)
			wantAnswer(t, "repeated", request(s, "POST", key, ""), int(last), "", true)
			wantCount(t, pool, done, "SELECT v FROM "+table)
		}
	})
}
