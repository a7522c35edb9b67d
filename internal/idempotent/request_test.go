package idempotent

import (
	"bytes"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestKeyOf reads the header as the draft has it, and as most clients send it.
func TestKeyOf(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`"8e03978e-40d5"`: "8e03978e-40d5", "8e03978e-40d5": "8e03978e-40d5", ` "a b" `: "a b",
		`"a\"b\\c"`: `a"b\c`, strings.Repeat("k", 255): strings.Repeat("k", 255),
		`""`: "", `"`: "", `"a`: "", `"a"; b`: "", `"a\b"`: "", `"a\`: "", " ": "", "ä": "", strings.Repeat("k", 256): "",
	} {
		got, err := keyOf(&http.Request{Header: http.Header{"Idempotency-Key": {value}}})
		testdb.ErrorIf(t, got != want || (err == nil) != (want != ""), "%s: %q, %v, want %q", value, got, err, want)
	}
	got, err := keyOf(&http.Request{})
	testdb.ErrorIf(t, got != "" || err != nil, "no header: %q, %v", got, err)
}

// TestKeysAreApart: no client reaches the key of another, nor a request that of another.
func TestKeysAreApart(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.client = func(r *http.Request) string { return r.Header.Get("User-Agent") }
	seen := make(map[txlock.Key]string)
	for _, one := range [][2]string{{"", "ab"}, {"a", "b"}, {"ab", ""}, {"b", "a"}} {
		key := c.key(&http.Request{Header: http.Header{"User-Agent": {one[0]}}}, one[1])
		err := key.Validate()
		testdb.ErrorIf(t, err != nil, "%v", err)
		other, there := seen[key]
		testdb.ErrorIf(t, there, "%v has the key of %s", one, other)
		seen[key] = one[0] + "|" + one[1]
	}
}

// TestStoredValues come back as they were, by their type.
func TestStoredValues(t *testing.T) {
	t.Parallel()
	result, err := EncodeAny(Answer{Status: 201, Header: map[string][][]byte{"A": {[]byte("b"), []byte("\xe9")}}, Body: []byte("\xff\x00")})
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode[Answer](result)
	testdb.ErrorIf(t, err != nil || got.Status != 201 || len(got.Header["A"]) != 2 || string(got.Header["A"][1]) != "\xe9" || string(got.Body) != "\xff\x00",
		"%+v, %v", got, err)
	for what, result := range map[string][]byte{"nothing": nil, "no JSON": []byte("-"), "another type": []byte(`{"type":"int","value":1}`), "no answer": []byte(`{"type":"idempotent.Answer","value":1}`)} {
		_, err := decode[Answer](result)
		testdb.ErrorIf(t, err == nil, "%s is an answer", what)
	}
}

// TestReplayOfAnAnswerStoredBefore: without added values, the stored headers take the place of others.
func TestReplayOfAnAnswerStoredBefore(t *testing.T) {
	t.Parallel()
	a, err := decode[Answer]([]byte(`{"type":"idempotent.Answer","value":{"status":201,"header":{"Link":null,"Vary":["QWNjZXB0"]},"body":"b2s="}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	w.Header().Set("Vary", "Origin")
	w.Header().Set("Link", "</next>")
	new(handler).replay(w, a)
	got := fmt.Sprintf("%d %q %q %s", w.Code, w.Header()["Vary"], w.Header()["Link"], w.Body)
	testdb.ErrorIf(t, got != `201 ["Accept"] [] ok`, "%v", got)
}

// form is a multipart request as a client makes it, with a boundary of its own.
func form(t *testing.T, file, content string, fields ...string) *http.Request {
	t.Helper()
	body := new(bytes.Buffer)
	w := multipart.NewWriter(body)
	part, err := w.CreateFormFile("receipt", file)
	if err == nil {
		_, err = part.Write([]byte(content))
	}
	for _, field := range fields {
		err = errors.Join(err, w.WriteField("field", field))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/payments", body)
	r.Header.Set("Content-Type", w.FormDataContentType())
	return r
}

func text(kind, body string) *http.Request {
	r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	return r
}

// printOf is the fingerprint of a request.
func printOf(t *testing.T, r *http.Request) string {
	t.Helper()
	body := new(bytes.Buffer)
	if _, err := body.ReadFrom(r.Body); err != nil {
		t.Fatal(err)
	}
	return string(fingerprint(r, body.Bytes()))
}

// TestFingerprint: what a client chooses anew when it repeats a request is left out, and nothing else of it.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	at := func(method, target string) *http.Request { return httptest.NewRequest(method, target, nil) }
	broken := "multipart/form-data; boundary=b"
	for what, c := range map[string]struct {
		one, other *http.Request
		same       bool
	}{
		"another boundary":          {form(t, "a.pdf", "a", "1"), form(t, "a.pdf", "a", "1"), true},
		"another file":              {form(t, "a.pdf", "a", "1"), form(t, "a.pdf", "b", "1"), false},
		"another name of a file":    {form(t, "a.pdf", "a", "1"), form(t, "b.pdf", "a", "1"), false},
		"another order of parts":    {form(t, "a.pdf", "a", "1", "2"), form(t, "a.pdf", "a", "2", "1"), false},
		"one part less":             {form(t, "a.pdf", "a", "1", "2"), form(t, "a.pdf", "a", "1"), false},
		"two parts in one":          {form(t, "a.pdf", "a", "12"), form(t, "a.pdf", "a", "1", "2"), false},
		"no part":                   {form(t, "a.pdf", "a"), text(broken, "--b--\r\n"), false},
		"a charset of UTF-8":        {text("application/json", "{}"), text(`application/json; charset="UTF-8"`, "{}"), true},
		"another writing":           {text("text/plain; a=1; charset=utf-8", "x"), text("Text/Plain;charset=Utf-8;A=1", "x"), true},
		"another charset":           {text("text/plain", "x"), text("text/plain; charset=iso-8859-1", "x"), false},
		"another kind":              {text("text/plain", "{}"), text("application/json", "{}"), false},
		"another parameter":         {text("text/plain; boundary=a", "x"), text("text/plain; boundary=b", "x"), false},
		"another body":              {text("text/plain", "x"), text("text/plain", "y"), false},
		"a body without its end":    {text(broken, "--b\r\n\r\na"), text(broken, "--b\r\n\r\nb"), false},
		"a kind that can't be read": {text("text/plain; =", "x"), text("text/plain; ;;", "x"), false},
		"another method":            {at("POST", "/a"), at("PATCH", "/a"), false},
		"another path":              {at("POST", "/a"), at("POST", "/b"), false},
		"another query":             {at("POST", "/a?b=1"), at("POST", "/a?b=2"), false},
	} {
		same := printOf(t, c.one) == printOf(t, c.other)
		testdb.ErrorIf(t, same != c.same, "%s: the same request: %t", what, same)
	}
	one, other := form(t, "a.pdf", "a"), form(t, "a.pdf", "a")
	testdb.ErrorIf(t, one.Header.Get("Content-Type") == other.Header.Get("Content-Type"), "mime/multipart makes the same boundary twice: nothing is tested")
}

// TestOptionsOutOfRange are refused when the handler is made.
func TestOptionsOutOfRange(t *testing.T) {
	t.Parallel()
	next := http.NotFoundHandler()
	try := func(next http.Handler, options ...Option) (err error) {
		defer func() { err, _ = recover().(error) }()
		Handler(nil, next, options)
		return nil
	}
	for says, option := range map[string]Option{
		"an option is nil":            nil,
		"Keep(0s)":                    KeepFor(0),
		"ConflictAfter(-1s)":          ConflictAfter(-time.Second),
		"MaxBody(0)":                  MaxBody(0),
		`KeepHeaders: "Set Cookie"`:   KeepHeaders("ETag", "Set Cookie"),
		`KeepHeaders: ""`:             KeepHeaders(""),
		"need a function":             ClientOf(nil),
		"FingerprintOf":               FingerprintOf(nil),
		"KeepStatuses needs":          KeepStatuses(nil),
		"KeepStatuses leaves out 302": KeepStatuses(func(status int) bool { return status != 302 }),
	} {
		err := try(next, option, KeyRequired)
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrInvalidOption) || !strings.Contains(err.Error(), says), "%s: %v", says, err)
	}
	if err := try(nil); err == nil || !strings.Contains(err.Error(), "got nil") {
		t.Errorf("no handler: %v", err)
	}
	fine := []Option{KeyRequired, KeepFor(time.Hour), ConflictAfter(0), MaxBody(1), KeepHeaders(), KeepHeaders("x-A_b"), OnError(nil), KeepStatuses(func(status int) bool { return status < 400 || status > 500 })}
	err := try(next, fine...)
	testdb.ErrorIf(t, err != nil, "options in their range: %v", err)
}
