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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// served is a handler behind OnceHandler that adds to a number, and what it says.
type served struct {
	http.Handler
	calls atomic.Int32
	last  atomic.Pointer[error] // of OnError
}

// answers makes a handler over a table of numbers.
func answers(pool *sql.DB, table string, answer func(w http.ResponseWriter, r *http.Request), options ...idempotency.Option) *served {
	s := new(served)
	options = append(options, idempotency.OnError(func(_ *http.Request, err error) { s.last.Store(&err) }))
	s.Handler = locksqlc.OnceHandler(pool, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := s.calls.Add(1)
		if _, err := locksqlc.TxOf(r.Context()).Exec("UPDATE " + table + " SET v = v + 1"); err != nil {
			idempotency.Fail(r.Context(), err)
			return
		}
		w.Header().Set("X-Call", fmt.Sprint(n))
		answer(w, r)
	}), options...)
	return s
}

// request sends a request with a key, unless that is empty.
func request(h http.Handler, method, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/payments?of=me", strings.NewReader(body))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return serve(h, r)
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func wantAnswer(t *testing.T, what string, w *httptest.ResponseRecorder, status int, body string, replayed bool) {
	t.Helper()
	testdb.ErrorIf(t, w.Code != status || !strings.Contains(w.Body.String(), body) || (w.Header().Get("Idempotent-Replayed") == "true") != replayed,
		"%s: %d %v %q, want %d %q, replayed %t", what, w.Code, w.Header(), w.Body, status, body, replayed)
}

// wantHeaders sends a request twice, and fails the test unless the values of these headers of both answers are the wanted ones.
func wantHeaders(t *testing.T, h http.Handler, names []string, wants ...string) {
	t.Helper()
	key := uniqueKey(t, "http").String()
	for i, want := range wants {
		w := request(h, "POST", key, "ten")
		wantAnswer(t, "the answer", w, 200, "", i > 0)
		var got []string
		for _, name := range names {
			got = append(got, fmt.Sprintf("%q", w.Header()[name]))
		}
		testdb.Equal(t, "the headers", strings.Join(got, " "), want)
	}
}

// echo answers 201 with the body of the request and the number of the call.
func echo(calls func() int32) func(w http.ResponseWriter, r *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			idempotency.Fail(r.Context(), err)
			return
		}
		w.Header().Set("Location", "/payments/7")
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "%s in call %d", body, calls())
	}
}

func TestOnceHandler(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table := numbers(t, db)
		var s *served
		s = answers(pool, table, echo(func() int32 { return s.calls.Load() }), idempotency.KeyRequired(), idempotency.MaxBody(1000),
			idempotency.ClientOf(func(r *http.Request) string { return r.Header.Get("User-Agent") }))
		key := uniqueKey(t, "http").String()
		wantAnswer(t, "the first", request(s, "POST", key, "ten"), 201, "ten in call 1", false)
		again := request(s, "POST", `"`+key+`"`, "ten") // as the draft has it
		wantAnswer(t, "again", again, 201, "ten in call 1", true)
		testdb.ErrorIf(t, again.Header().Get("Location") != "/payments/7" || again.Header().Get("Set-Cookie") != "" || again.Header().Get("X-Call") != "",
			"the headers of a repeated answer: %v", again.Header())
		wantAnswer(t, "another body", request(s, "POST", key, "twenty"), 422, "already used", false)
		wantAnswer(t, "another method", request(s, "PATCH", key, "ten"), 422, "already used", false)
		err := s.last.Load()
		testdb.ErrorIf(t, err == nil || !errors.Is(*err, txlock.ErrMismatch), "OnError was told %v", err)
		r := httptest.NewRequest("POST", "/payments?of=me", strings.NewReader("ten"))
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("User-Agent", "another client")
		wantAnswer(t, "another client", serve(s, r), 201, "ten in call 2", false)

		missing := request(s, "POST", "", "ten")
		wantAnswer(t, "no key", missing, 400, "missing", false)
		testdb.Equal(t, "the content type of a problem", missing.Header().Get("Content-Type"), "application/problem+json")
		for _, bad := range []string{`"`, `"a`, `"a"b`, `"\x"`, " ", "ä", strings.Repeat("k", 256)} {
			wantAnswer(t, "bad key "+bad, request(s, "POST", bad, "ten"), 400, "not valid", false)
		}
		r.Header["Idempotency-Key"] = []string{"a", "b"}
		wantAnswer(t, "two keys", serve(s, r), 400, "several", false)
		wantAnswer(t, "a large body", request(s, "POST", key+"+", strings.Repeat("x", 1001)), 413, "1000", false)
		wantAnswer(t, "PUT without a key", request(s, "PUT", "", "x"), 201, "x in call 3", false)
		for call := range 2 {
			wantAnswer(t, "GET with a key", request(s, "GET", key, ""), 201, fmt.Sprintf("in call %d", 4+call), false)
		}
		n := count(t, pool, "SELECT v FROM "+table)
		testdb.ErrorIf(t, n != 5 || s.calls.Load() != 5, "%d times in %d calls", n, s.calls.Load())
		idle(t, pool)
	})
}

// TestOnceHandlerThatFails: what was rolled back is not stored, so the next request is the first; what the handler has met says nothing of the key.
func TestOnceHandlerThatFails(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key := numbers(t, db), uniqueKey(t, "http").String()
		var answer http.HandlerFunc
		s := answers(pool, table, func(w http.ResponseWriter, r *http.Request) { answer(w, r) })
		fails := func(err error) http.HandlerFunc {
			return func(_ http.ResponseWriter, r *http.Request) { idempotency.Fail(r.Context(), err) }
		}
		broken := fails(errors.New("broken"))
		for _, c := range []struct {
			way    string
			answer http.HandlerFunc
			status int
			body   string
		}{
			{"status", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", 500) }, 500, "broken"},
			{"error", fails(nil), 503, "with the same key"},
			{"mismatch", fails(fmt.Errorf("another: %w", txlock.ErrMismatch)), 503, "no answer"},
			{"timeout", fails(fmt.Errorf("another: %w", txlock.ErrWaitTimeout)), 503, "no answer"},
			{"late", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusCreated); broken(w, r) }, 503, "no answer"},
			{"error and answer", func(w http.ResponseWriter, r *http.Request) {
				broken(w, r)
				http.Error(w, "no money", http.StatusPaymentRequired)
			}, 402, "no money"},
			{"long", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 9<<20)) }, 500, "can't be kept"},
		} {
			answer = c.answer
			wantAnswer(t, c.way, request(s, "POST", key, ""), c.status, c.body, false)
		}
		answer = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		wantPanic(t, http.ErrAbortHandler, func() { request(s, "POST", key, "") })
		answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(0) }
		wantPanic(t, "invalid WriteHeader code 0", func() { request(s, "POST", key, "") })
		answer = fails(nil)
		wantAnswer(t, "without a key", request(s, "POST", "", ""), 503, "may have been carried out", false)
		wantCount(t, pool, 0, "SELECT v FROM "+table)
		answer = func(w http.ResponseWriter, r *http.Request) {
			answer = func(http.ResponseWriter, *http.Request) {}
			fails(fmt.Errorf("%w: as it happens", txlock.ErrDeadlock))(w, r)
		}
		wantAnswer(t, "deadlock", request(s, "POST", key, ""), 200, "", false)
		wantAnswer(t, "again", request(s, "POST", key, ""), 200, "", true)
		n := count(t, pool, "SELECT v FROM "+table)
		testdb.ErrorIf(t, n != 1 || s.calls.Load() != 12, "done %d times in %d calls", n, s.calls.Load())
		key = uniqueKey(t, "http").String()
		answer = func(_ http.ResponseWriter, r *http.Request) { check(t, locksqlc.TxOf(r.Context()).Commit()) }
		wantAnswer(t, "commit", request(s, "POST", key, ""), 503, "no answer", false)
		wantAnswer(t, "commit, again", request(s, "POST", key, ""), 500, "was carried out", false)
		testdb.ErrorIf(t, locksqlc.TxOf(t.Context()) != nil, "a context without a transaction has one")
		idle(t, pool)
	})
}

// TestOnceHandlerInADeadlock: a handler is called again whose transaction a deadlock has ended; on a plain pool, which can't know, its answer stands.
func TestOnceHandlerInADeadlock(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		table, key := numbers(t, db), uniqueKey(t, "http").String()
		ballast := db.CreateTable(t, "ballast", "id INT PRIMARY KEY, v INT NOT NULL")
		rival := begin(t, newPool(t, db.Config(), false))
		exec(t, rival, "INSERT INTO "+ballast+" SELECT a.d * 10 + b.d, 0 FROM "+digits+" a, "+digits+" b") // it has done more, and wins
		id, won := testdb.ConnID(t, rival), make(chan error, 1)
		var s *served
		s = answers(pool, table, func(w http.ResponseWriter, r *http.Request) {
			if s.calls.Load() > 1 {
				return
			}
			go func() {
				_, err := rival.Exec("UPDATE " + table + " SET v = v + 10")
				won <- errors.Join(err, rival.Commit())
			}()
			db.WaitForLockWait(t, id)
			_, err := locksqlc.TxOf(r.Context()).Exec("UPDATE " + ballast + " SET v = 1")
			testdb.ErrorIf(t, err == nil, "there was no deadlock")
			http.Error(w, "broken", http.StatusInternalServerError)
		})
		answer := request(s, "POST", key, "")
		if !guarded {
			wantAnswer(t, "after the deadlock", answer, 500, "broken", false)
			answer = request(s, "POST", key, "")
		}
		wantAnswer(t, "after the deadlock", answer, 200, "", false)
		check(t, <-won)
		n := count(t, pool, "SELECT v FROM "+table)
		testdb.ErrorIf(t, n != 11 || s.calls.Load() != 2, "done %d times in %d calls", n-10, s.calls.Load())
		idle(t, pool)
	})
}

// TestOnceHandlerWhileTheFirstIsOpen waits, or says so.
func TestOnceHandlerWhileTheFirstIsOpen(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key := numbers(t, db), uniqueKey(t, "http").String()
		open, end := make(chan struct{}), make(chan struct{})
		working := func(w http.ResponseWriter, _ *http.Request) {
			close(open)
			<-end
			_, _ = fmt.Fprint(w, "done")
		}
		patient := answers(pool, table, working)
		hasty := answers(pool, table, working, idempotency.ConflictAfter(10*time.Millisecond))
		all := make(chan *httptest.ResponseRecorder, 2)
		go func() { all <- request(patient, "POST", key, "x") }()
		<-open
		conflict := request(hasty, "POST", key, "x")
		wantAnswer(t, "a hasty one", conflict, 409, "outstanding", false)
		testdb.ErrorIf(t, conflict.Header().Get("Retry-After") == "", "the headers of a conflict: %v", conflict.Header())
		waiter := single(newPool(t, db.Config(), true))
		id := testdb.ConnID(t, waiter)
		go func() { all <- request(answers(waiter, table, working), "POST", key, "x") }()
		db.WaitForLockWait(t, id)
		close(end)
		replays := 0
		for range 2 {
			w := <-all
			testdb.ErrorIf(t, w.Code != 200 || w.Body.String() != "done", "%d %q", w.Code, w.Body)
			if w.Header().Get("Idempotent-Replayed") == "true" {
				replays++
			}
		}
		n := count(t, pool, "SELECT v FROM "+table)
		testdb.ErrorIf(t, n != 1 || replays != 1, "done %d times, %d replays", n, replays)
		wantAnswer(t, "a hasty one later", request(hasty, "POST", key, "x"), 200, "done", true)
	})
}

// TestOnceHandlerAdds: values that the handler adds are added to those that others set around the replay; a header of one value keeps its own.
func TestOnceHandlerAdds(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		once := answers(pool, numbers(t, db), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Vary", "Accept")
			w.Header().Add("Link", "</next>")
			w.Header().Add("Set-Cookie", "of=handler")
			w.Header().Add("Content-Type", "text/plain")
			w.Header().Add("Cache-Control", "private")
		}, idempotency.KeepHeaders("vary", "Link", "Set-Cookie", "Content-Type", "Cache-Control"))
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			call := fmt.Sprint(once.calls.Load())
			w.Header().Set("Set-Cookie", "of=request"+call)
			w.Header().Set("Cache-Control", "max-age="+call)
			if once.calls.Load() > 0 {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Vary", "Origin")
				w.Header().Set("Link", "</next>")
			}
			once.ServeHTTP(w, r)
		})
		wantHeaders(t, outer, []string{"Vary", "Link", "Set-Cookie", "Content-Type", "Cache-Control"},
			`["Accept"] ["</next>"] ["of=request0" "of=handler"] ["text/plain"] ["max-age=0" "private"]`,
			`["Origin" "Accept"] ["</next>"] ["of=request1" "of=handler"] ["text/plain"] ["max-age=1" "private"]`)
	})
}

// TestOnceHandlerLateHeaders: what a handler sets behind the status is no header of the answer, as net/http has it, but for a trailer.
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
			r := testdb.Got(http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, nil))(t)
			r.Header.Set("Idempotency-Key", key)
			answer, err := s.Client().Do(r)
			testdb.Must(t, err)
			check(t, errors.Join(testdb.Err(io.Copy(io.Discard, answer.Body)), answer.Body.Close()))
			kind, place := answer.Header.Get("Content-Type"), answer.Header.Get("Location")
			testdb.ErrorIf(t, kind != "text/early" || place != "", "again=%t: the headers are %q and %q", again, kind, place)
			late := answer.Trailer.Get("Late")
			testdb.ErrorIf(t, !again && late != "trailer", "the trailer is %q", late)
		}
	})
}

// TestOnceHandlerOfAForm: a form that is sent again has another boundary, and is the same request. Its files are gone with the request.
func TestOnceHandlerOfAForm(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		name := ""
		s := answers(newPool(t, db.Config(), true), numbers(t, db), func(w http.ResponseWriter, r *http.Request) {
			check(t, r.ParseMultipartForm(0))
			file := testdb.Got(r.MultipartForm.File["receipt"][0].Open())(t)
			name = file.(*os.File).Name()
			check(t, file.Close())
			w.WriteHeader(http.StatusCreated)
			check(t, testdb.Err(io.WriteString(w, "kept")))
		}, idempotency.MaxBody(20<<20))
		key, large := uniqueKey(t, "http").String(), strings.Repeat("x", 11<<20) // ParseMultipartForm keeps 10 MiB in memory
		wantAnswer(t, "the first", upload(t, s, key, large), 201, "kept", false)
		_, err := os.Stat(name)
		testdb.ErrorIf(t, !errors.Is(err, fs.ErrNotExist), "the file %q is still there: %v", name, err)
		wantAnswer(t, "again", upload(t, s, key, large), 201, "kept", true)
		wantAnswer(t, "another file", upload(t, s, key, "b"), 422, "already used", false)
		testdb.Equal(t, "calls", s.calls.Load(), 1)
	})
}

// TestOnceHandlerKeepsHeaders: what the handler has made of its headers is repeated, byte by byte, and what others set around it stays theirs.
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
		wantHeaders(t, outer, []string{"Vary", "Content-Disposition", "Content-Language", "Link", "Content-Encoding", "X-Outer"},
			`["Origin" "Accept"] ["attachment; filename=\"caf\xe9\""] ["en"] [] ["POST0"] []`,
			`["Origin" "Accept"] ["attachment; filename=\"caf\xe9\""] ["en"] [] [] ["POST1"]`)
	})
}

// TestOnceHandlerWithoutTheBody refuses a request whose body somebody has read before: it would be the same as any other.
func TestOnceHandlerWithoutTheBody(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), true)
		s := answers(pool, numbers(t, db), func(http.ResponseWriter, *http.Request) {})
		r := httptest.NewRequest("POST", "/", strings.NewReader("a=1"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Idempotency-Key", uniqueKey(t, "http").String())
		check(t, r.ParseForm())
		wantAnswer(t, "a form that was parsed", serve(s, r), 500, "Nothing was done", false)
		err := s.last.Load()
		testdb.ErrorIf(t, err == nil || !strings.Contains((*err).Error(), "was read before"), "told %v", err)
	})
}

// upload sends a file as mime/multipart does, with a new boundary each time.
func upload(t *testing.T, h http.Handler, key, content string) *httptest.ResponseRecorder {
	t.Helper()
	body := new(bytes.Buffer)
	form := multipart.NewWriter(body)
	part := testdb.Got(form.CreateFormFile("receipt", "receipt.pdf"))(t)
	check(t, testdb.Err(part.Write([]byte(content))))
	check(t, form.Close())
	r := httptest.NewRequest("POST", "/receipts", body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Idempotency-Key", key)
	return serve(h, r)
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

// TestOnceHandlerStatuses: an answer whose status isn't kept is given, rolled back and not stored. The program says which are kept.
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

// wantOnce fails the test unless a call of Once has returned this.
func wantOnce(t *testing.T, what string, first bool, err error, want bool, wantErr error) {
	t.Helper()
	testdb.ErrorIf(t, first != want || !errors.Is(err, wantErr), "%s: %t, %v, want %t, %v", what, first, err, want, wantErr)
}

// TestOnce: fn is called until one call has committed.
func TestOnce(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key, broken := numbers(t, db), uniqueKey(t, "once"), errors.New("fn fails")
		calls := 0
		add := func(then func() error) (bool, error) {
			return locksqlc.Once(t.Context(), pool, key, func(tx *sql.Tx) error {
				calls++
				exec(t, tx, "UPDATE "+table+" SET v = v + 1")
				return then()
			}, txlock.Fingerprint([]byte("one")))
		}
		first, err := add(func() error { return broken })
		wantOnce(t, "fn fails", first, err, false, broken)
		wantPanic(t, "on purpose", func() { _, _ = add(func() error { panic("on purpose") }) })
		idle(t, pool)
		first, err = add(func() error { return nil })
		wantOnce(t, "fn succeeds", first, err, true, nil)
		first, err = add(func() error { return broken })
		wantOnce(t, "again", first, err, false, nil)
		first, err = locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { calls++; return nil }, txlock.Fingerprint([]byte("two")))
		wantOnce(t, "another request", first, err, false, txlock.ErrMismatch)
		idle(t, pool)
		n := count(t, pool, "SELECT v FROM "+table)
		testdb.ErrorIf(t, n != 1 || calls != 3, "done %d times in %d calls", n, calls)
	})
}

// TestWhoIsNotTheFirstWrites: a server without a binary log may lose what the first has committed. So who is told of that commits something, too.
func TestWhoIsNotTheFirstWrites(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		if count(t, db.Admin(), "SELECT @@log_bin") != 0 {
			return
		}
		key := uniqueKey(t, "sealed")
		seals := func() int {
			return count(t, db.Admin(), "SELECT CAST(COALESCE(SUM(done_us), 0) AS SIGNED) FROM lockstep_once WHERE LOCATE('lockstep:seal:', name) = 2")
		}
		for _, want := range []bool{true, false} {
			before := seals()
			first, err := locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { return nil })
			wantOnce(t, "Once", first, err, want, nil)
			testdb.ErrorIf(t, !first && seals() == before, "who isn't the first has written nothing")
		}
	})
}

// TestOnceOfAnExpiredKey is the first again for one of many who ask at once.
func TestOnceOfAnExpiredKey(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		key := uniqueKey(t, "once")
		db.Exec(t, "INSERT INTO lockstep_once VALUES ('"+key.String()+"', '-', '-', 1, 1)")
		var firsts atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				first, err := locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { return nil })
				testdb.ErrorIf(t, err != nil, "%v", err)
				if first {
					firsts.Add(1)
				}
			})
		}
		wg.Wait()
		testdb.Equal(t, "those that are the first", firsts.Load(), 1)
	})
}
