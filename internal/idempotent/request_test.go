package idempotent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", value, got, err, want)
		}
	}
	if got, err := keyOf(&http.Request{}); got != "" || err != nil {
		t.Errorf("no header: %q, %v", got, err)
	}
}

// TestKeysAreApart: no client reaches the key of another, nor a request that of another.
func TestKeysAreApart(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.client = func(r *http.Request) string { return r.Header.Get("User-Agent") }
	seen := make(map[txlock.Key]string)
	for _, one := range [][2]string{{"", "ab"}, {"a", "b"}, {"ab", ""}, {"b", "a"}} {
		key := c.key(&http.Request{Header: http.Header{"User-Agent": {one[0]}}}, one[1])
		if err := key.Validate(); err != nil {
			t.Error(err)
		}
		if other, there := seen[key]; there {
			t.Errorf("%v has the key of %s", one, other)
		}
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
	if err != nil || got.Status != 201 || len(got.Header["A"]) != 2 || string(got.Header["A"][1]) != "\xe9" || string(got.Body) != "\xff\x00" {
		t.Errorf("%+v, %v", got, err)
	}
	for what, result := range map[string][]byte{"nothing": nil, "no JSON": []byte("-"), "another type": []byte(`{"type":"int","value":1}`), "no answer": []byte(`{"type":"idempotent.Answer","value":1}`)} {
		if _, err := decode[Answer](result); err == nil {
			t.Errorf("%s is an answer", what)
		}
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
	if got := fmt.Sprintf("%d %q %q %s", w.Code, w.Header()["Vary"], w.Header()["Link"], w.Body); got != `201 ["Accept"] [] ok` {
		t.Error(got)
	}
}
