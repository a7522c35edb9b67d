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
	"github.com/dca00107/lockstep/txlock/idempotency"
)

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
			check(t, errors.Join(second(io.Copy(io.Discard, answer.Body)), answer.Body.Close()))
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

// TestOnceHandlerKeepsHeaders proves that what the handler has made of its headers is repeated, byte by
// byte, and that what others have set around it stays: they set it anew for a later request.
func TestOnceHandlerKeepsHeaders(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		once := answers(pool, numbers(t, db), func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Content-Type", "changed")
			w.Header().Add("Vary", "Accept")
			w.Header().Set("Content-Disposition", "attachment; filename=\"caf\xe9\"")
			w.Header().Set("Content-Language", "en")
			w.Header().Del("Link")
			w.Header().Del("X-Outer")
		})
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Origin")
			for _, name := range []string{"Content-Encoding", "Content-Language", "Link", "X-Outer"} {
				w.Header().Set(name, r.Method+fmt.Sprint(once.calls.Load()))
			}
			if once.calls.Load() > 0 {
				w.Header().Del("Content-Encoding")
			}
			once.ServeHTTP(w, r)
		})
		key := uniqueKey(t, "http").String()
		for i, want := range []string{
			`["Origin" "Accept"] ["attachment; filename=\"caf\xe9\""] ["en"] [] ["POST0"] []`,
			`["Origin" "Accept"] ["attachment; filename=\"caf\xe9\""] ["en"] [] [] ["POST1"]`,
		} {
			w := request(outer, "POST", key, "ten")
			wantAnswer(t, "the answer", w, 200, "", i > 0)
			wantHeaders(t, w, want, "Vary", "Content-Disposition", "Content-Language", "Link", "Content-Encoding", "X-Outer")
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
