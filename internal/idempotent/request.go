package idempotent

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// Option is an option of OnceHandler; see there.
type Option func(*config)

// config is what the options say.
type config struct {
	required      bool
	conflictAfter time.Duration
	keep          time.Duration
	maxBody       int64
	maxAnswer     int
	headers       []string
	statuses      statuses
	fingerprint   func(*http.Request, []byte) []byte
	client        func(*http.Request) string
	onError       func(*http.Request, error)
	bad           error // an option out of its range
}

func defaults() config {
	kept, err := statusesOf(func(status int) bool { return status < http.StatusInternalServerError })
	return config{
		statuses: kept, bad: err, fingerprint: fingerprint,
		keep: 24 * time.Hour, maxBody: 1 << 20, maxAnswer: maxResult / 2,
		headers: []string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", "Location", "ETag", "Last-Modified", "Link", "Cache-Control", "Vary"},
		client:  func(*http.Request) string { return "" },
	}
}

// configOf is what options say, or txlock.ErrInvalidOption.
func configOf(options []Option) (config, error) {
	c := defaults()
	for _, option := range options {
		if option == nil {
			return c, fmt.Errorf("%w: an option is nil", txlock.ErrInvalidOption)
		}
		option(&c)
	}
	if _, _, err := inner.OnceAsked([]txlock.OnceOption{txlock.Keep(c.keep)}); err != nil {
		c.refuse(err)
	}
	if c.conflictAfter < 0 {
		c.refuse(fmt.Errorf("ConflictAfter(%v): the limit must not be negative", c.conflictAfter))
	}
	if c.maxBody <= 0 {
		c.refuse(fmt.Errorf("MaxBody(%d): the limit must be positive", c.maxBody))
	}
	for _, name := range c.headers {
		if !isToken(name) {
			c.refuse(fmt.Errorf("KeepHeaders: %q is no name of a header", name))
		}
	}
	if c.client == nil || c.fingerprint == nil {
		c.refuse(errors.New("ClientOf and FingerprintOf need a function, got nil"))
	}
	return c, c.bad
}

// refuse notes that an option is out of its range. The first stays.
func (c *config) refuse(why error) {
	switch {
	case c.bad != nil:
	case errors.Is(why, txlock.ErrInvalidOption):
		c.bad = why
	default:
		c.bad = fmt.Errorf("%w: %w", txlock.ErrInvalidOption, why)
	}
}

// isToken reports whether a name is a token of RFC 9110, as names of headers are.
func isToken(name string) bool {
	const of = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"
	return name != "" && strings.Trim(name, of) == ""
}

// KeyRequired is an option, as the functions below: see those of these names in locksqlc.
func KeyRequired(c *config) { c.required = true }

// ConflictAfter is an option.
func ConflictAfter(d time.Duration) Option { return func(c *config) { c.conflictAfter = d } }

// KeepFor is an option.
func KeepFor(d time.Duration) Option { return func(c *config) { c.keep = d } }

// MaxBody is an option.
func MaxBody(bytes int64) Option { return func(c *config) { c.maxBody = bytes } }

// KeepHeaders is an option.
func KeepHeaders(names ...string) Option { return func(c *config) { c.headers = names } }

// KeepStatuses is an option.
func KeepStatuses(kept func(status int) bool) Option {
	return func(c *config) {
		all, err := statusesOf(kept)
		if c.statuses = all; err != nil {
			c.refuse(err)
		}
	}
}

// FingerprintOf is an option.
func FingerprintOf(cover func(r *http.Request, body []byte) []byte) Option {
	return func(c *config) { c.fingerprint = cover }
}

// ClientOf is an option.
func ClientOf(client func(*http.Request) string) Option {
	return func(c *config) { c.client = client }
}

// OnError is an option.
func OnError(report func(*http.Request, error)) Option { return func(c *config) { c.onError = report } }

// maxKey is how long the value of Idempotency-Key may be.
const maxKey = 255

// keyOf returns the value of the header Idempotency-Key, or "" if there is none. The draft
// says that it is a String of RFC 8941, in quotes; most clients send it without.
func keyOf(r *http.Request) (string, error) {
	values := r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", errors.New("There are several headers Idempotency-Key.") //nolint:staticcheck // a sentence for the client
	}
	value := strings.Trim(values[0], " \t")
	if strings.HasPrefix(value, `"`) {
		var ok bool
		if value, ok = unquoted(value); !ok {
			return "", errors.New("Its value is not a String as RFC 8941 has it.") //nolint:staticcheck // see above
		}
	}
	if value == "" || len(value) > maxKey || strings.ContainsFunc(value, func(c rune) bool { return c < 0x20 || c > 0x7e }) {
		return "", errors.New("Its value has 1 to 255 characters of printable ASCII.") //nolint:staticcheck // see above
	}
	return value, nil
}

// unquoted reads a String of RFC 8941.
func unquoted(text string) (string, bool) {
	var value strings.Builder
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return value.String(), i == len(text)-1
		case '\\':
			i++
			if i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", false
			}
		}
		value.WriteByte(text[i])
	}
	return "", false
}

// safe reports whether requests of a method change nothing.
func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// idempotent reports whether requests of a method may be repeated without a key.
func idempotent(method string) bool {
	return safe(method) || method == http.MethodPut || method == http.MethodDelete
}

// key is the key of a request: a hash, as long as a key may be whatever the client sends.
func (c *config) key(r *http.Request, name string) txlock.Key {
	return txlock.Named("http:" + hex.EncodeToString(hashed([]byte(c.client(r)), []byte(name))))
}

// once are the options of a request's key.
func (c *config) once(r *http.Request, body []byte) []txlock.OnceOption {
	return []txlock.OnceOption{txlock.Keep(c.keep), txlock.Fingerprint(c.fingerprint(r, body))}
}

// hashed is the hash of several parts, each with its length before it.
func hashed(parts ...[]byte) []byte {
	sum := sha256.New()
	for _, part := range parts {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		sum.Write(length[:])
		sum.Write(part)
	}
	return sum.Sum(nil)
}

// refuse answers by a problem as RFC 9457 has it.
func refuse(w http.ResponseWriter, status int, title, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusConflict || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct { // the client is gone
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{"about:blank", title, status, detail})
}

// readCloser is the body of a request.
type readCloser struct{ io.Reader }

func (readCloser) Close() error { return nil }
