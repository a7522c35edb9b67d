package lockhttp

import (
	"bytes"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"html/template"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
)

//go:embed assets
var assets embed.FS

// A Handler serves the pages. Use New to make one.
type Handler struct {
	options
	db      *sql.DB
	room    *ops.Room
	sampler *sampler
	history history
	last    ops.Jobs // that were read, by the sampler
	origins http.CrossOriginProtection
}

var _ http.Handler = (*Handler)(nil)

// An Option configures New.
type Option func(*options)

type options struct {
	masks
	authorize Authorizer
	log       *slog.Logger
	recorder  *Recorder
	wrong     []error
}

func (o *options) need(given bool, option, what string) {
	if !given {
		o.wrong = append(o.wrong, fmt.Errorf("%w: lockhttp.%s needs %s, got nil", txlock.ErrInvalidOption, option, what))
	}
}

// MaskKeys sets what viewers see instead of keys, on pages, in JSON and in addresses. It should
// return different texts for different keys, and the same text for the same key: keys with the same
// text are shown as one, and the page can't release them or request their release. A viewer who
// knows a key can look it up by its own name. The mask is called from several goroutines at once,
// with the keys of all programs and what viewers search for: any text. The default shows keys as
// they are.
func MaskKeys(mask func(key string) string) Option {
	return func(o *options) { o.keys = mask; o.need(mask != nil, "MaskKeys", "a function") }
}

// MaskNotes sets what viewers see instead of what programs write for people: owners, labels of
// leases, reasons of requests to release, and errors of jobs. The default shows them as they are.
// The mask is called like that of MaskKeys.
func MaskNotes(mask func(note string) string) Option {
	return func(o *options) { o.notes = mask; o.need(mask != nil, "MaskNotes", "a function") }
}

// Authorize lets users release locks, request releases, and pause, resume and run jobs, as far as
// the authorizer allows it. The default is that the pages are read-only.
func Authorize(authorizer Authorizer) Option {
	return func(o *options) { o.authorize = authorizer; o.need(authorizer != nil, "Authorize", "a function") }
}

// Log sets the logger of all changes, with their users. The default is slog.Default.
func Log(log *slog.Logger) Option {
	return func(o *options) { o.log = log; o.need(log != nil, "Log", "a *slog.Logger") }
}

// Events adds to the pages what a Recorder has seen in this process. The default is none:
// then the timeline has what queries of the server have found.
func Events(recorder *Recorder) Option {
	return func(o *options) { o.recorder = recorder; o.need(recorder != nil, "Events", "a *Recorder") }
}

// New returns a handler for the database of the pool, which stays the caller's. It sends nothing to
// the server. Close it when it is no longer needed.
//
// It returns txlock.ErrInvalidOption for an option that is nil, and an error for a pool that
// is nil.
func New(db *sql.DB, opts ...Option) (*Handler, error) {
	if db == nil {
		return nil, errors.New("lockhttp: New needs a *sql.DB, got nil: open the pool first")
	}
	h := &Handler{options: options{log: slog.Default()}, db: db, room: ops.New(db)}
	for _, option := range opts {
		option(&h.options)
	}
	if err := errors.Join(h.wrong...); err != nil {
		return nil, err
	}
	h.sampler = newSampler(h.take)
	return h, nil
}

// Close ends the live updates of all viewers, and waits for the last query. Later requests get 503.
// The pool stays open. It may be called again.
//
// Live updates keep the Shutdown of an http.Server waiting, so pass Close to its
// RegisterOnShutdown.
func (h *Handler) Close() { h.sampler.close() }

// policy is the Content-Security-Policy: all is of this origin, and nothing is inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP looks only at the last element of the path, and all links are relative: so the handler
// may be below any path that ends with a slash, with http.StripPrefix or without.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch {
	case slices.Contains(verbs, Verb(name)):
		h.act(w, r, name)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD")
		h.refuse(w, r, http.StatusMethodNotAllowed, "This page can only be read.")
	case path.Ext(name) != "" && path.Ext(name) != ".json":
		h.asset(w, r, name)
	default:
		h.page(w, r, name)
	}
}

func (h *Handler) asset(w http.ResponseWriter, r *http.Request, name string) {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil || path.Ext(name) == ".html" { // a template, which is shown filled in only
		h.refuse(w, r, http.StatusNotFound, "There is no such page.")
		return
	}
	w.Header().Set("Cache-Control", "max-age=86400") // the address changes with the text
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(text))
}

var templates = template.Must(template.New("").Funcs(template.FuncMap{"asset": address}).ParseFS(assets, "assets/*.html"))

// address returns the address of an asset, which differs for other texts.
func address(name string) string {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // a template names what isn't embedded
	}
	return fmt.Sprintf("%s?v=%08x", name, crc32.ChecksumIEEE(text))
}

// refuse answers with a page that says why.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, code int, why string) {
	if format(r) == "json" {
		writeJSON(w, code, map[string]string{"error": why})
		return
	}
	h.render(w, code, "page", &view{Title: http.StatusText(code), Nav: navigation(""), Problem: why})
}

// failed answers where no snapshot could be had.
func (h *Handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errClosed):
		h.refuse(w, r, http.StatusServiceUnavailable, "The page is closed: its program ends.")
	case r.Context().Err() != nil: // the viewer has gone
	case errors.Is(err, context.DeadlineExceeded):
		h.refuse(w, r, http.StatusGatewayTimeout, "The server doesn't answer in time.")
	default:
		h.refuse(w, r, http.StatusBadGateway, "The server doesn't answer: "+printable(err.Error()))
	}
}

// render writes a template whole, or nothing of it.
func (h *Handler) render(w http.ResponseWriter, code int, name string, v *view) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, v); err != nil {
		h.log.Error("lockhttp: a template", "error", err)
		http.Error(w, "The page can't be written: see the log.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = b.WriteTo(w) // the viewer may have gone
}
