package lockhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
)

// view is what the templates show.
type view struct {
	Title, Query, Summary, Message, Problem string
	Taken                                   string
	Nav                                     []link
	Gaps                                    []string
	Sections                                []section
}

type link struct {
	Text, Href string
	Current    bool
}

// section is a part of a page, which shows one of these.
type section struct {
	ID, Title, Text string
	Table           *table
	Charts          []chart
	Tree            []branch
	Forms           []form
}

// page is one of the pages. Its show returns the sections, and what is written as JSON.
type page struct {
	name, title string
	demand      demand
	show        func(c *call) ([]section, any)
}

var pages = []page{
	{"", "Overview", demand{jobs: true}, (*call).overview},
	{"locks", "Locks", demand{}, (*call).locks},
	{"leases", "Leases", demand{}, (*call).leases},
	{"waits", "Waits", demand{}, (*call).waits},
	{"queues", "Queues", demand{}, (*call).queues},
	{"jobs", "Jobs", demand{jobs: true}, (*call).showJobs},
	{"leaders", "Leaders", demand{}, (*call).showLeaders},
	{"events", "Events", demand{}, (*call).events},
	{"search", "Search", demand{jobs: true}, (*call).search},
	{"key", "Key", demand{jobs: true}, (*call).key},
}

// hidden are the pages that are not in the navigation.
const hidden = 2

func navigation(current string) (nav []link) {
	for _, p := range pages[:len(pages)-hidden] {
		nav = append(nav, link{p.title, "./" + p.name, p.title == current})
	}
	return nav
}

// call is one view of a page.
type call struct {
	*Handler
	content
	r       *http.Request
	query   url.Values
	problem string // why what is shown is old
}

// asSeen qualifies a sentence about what there is, if there are gaps.
func asSeen(sentence string, gaps []ops.Gap) string {
	if len(gaps) == 0 {
		return sentence
	}
	return strings.TrimSuffix(sentence, ".") + ", as far as can be seen: see below."
}

// param returns a parameter of the address, without spaces around it.
func (c *call) param(name string) string { return strings.TrimSpace(c.query.Get(name)) }

// format returns how a request wants to have its answer: html, fragment, stream, json.
func format(r *http.Request) string {
	wanted := r.URL.Query().Get("format")
	switch {
	case strings.HasSuffix(r.URL.Path, ".json"):
		return "json"
	case r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/event-stream"): // the answer to HEAD has an end
		return "stream"
	case wanted == "json", wanted == "fragment":
		return wanted
	}
	return "html"
}

func (h *Handler) page(w http.ResponseWriter, r *http.Request, name string) {
	name = strings.TrimSuffix(name, ".json")
	for _, p := range pages {
		if p.name != name && (p.name != "" || name != "overview") {
			continue
		}
		if format(r) == "stream" {
			h.stream(w, r, p)
		} else {
			h.answer(w, r, p)
		}
		return
	}
	h.refuse(w, r, http.StatusNotFound, "There is no such page.")
}

// answer answers with what there is now.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, p page) {
	s, err := h.sampler.next(r.Context(), 0, p.wants(h, r))
	if err == nil && s.Picture == nil {
		err = s.err
	}
	if err != nil {
		h.failed(w, r, err)
		return
	}
	v, data := h.show(r, p, s)
	switch format(r) {
	case "json":
		code := http.StatusOK
		if s.err != nil { // a program doesn't read how old it is
			code = http.StatusBadGateway
		}
		writeJSON(w, code, data)
	case "fragment":
		h.render(w, http.StatusOK, "live", v)
	default:
		h.render(w, http.StatusOK, "page", v)
	}
}

// wants returns what a page shows beside the picture.
func (p page) wants(h *Handler, r *http.Request) demand {
	d := p.demand
	if named := r.URL.Query().Get("key"); p.name == "key" && named != "" {
		key := named
		if last := h.sampler.last(); last != nil {
			_, key = h.reveal(last.content, named)
		}
		if key != "" {
			d.keys = map[string]bool{key: true}
		}
	}
	return d
}

// show makes the view of a page.
func (h *Handler) show(r *http.Request, p page, s *snapshot) (*view, any) {
	c := &call{Handler: h, content: s.content, r: r, query: r.URL.Query()}
	v := &view{Title: p.title, Nav: navigation(p.title), Query: c.param("q"), Taken: when(s.Taken), Message: c.message()}
	v.Summary = fmt.Sprintf("%s, %s, %s", count(len(s.Locks), "lock"), count(c.holding(), "lease"), count(len(s.Waits), "session")+" waiting")
	if len(s.Hiding()) > 0 {
		v.Summary += ", as far as can be seen,"
	}
	if s.err != nil {
		v.Problem = fmt.Sprintf("The server doesn't answer. This was seen %s: %s", ago(time.Since(s.seen)), printable(s.err.Error()))
		c.problem = v.Problem
	}
	for _, gap := range s.Gaps {
		v.Gaps = append(v.Gaps, printable(gap.String()))
	}
	var data any
	v.Sections, data = p.show(c)
	if p.name == "key" {
		v.Title = c.titleOfKey()
	}
	return v, data
}

// holding counts the leases without the waiters.
func (c *call) holding() (n int) {
	for _, l := range c.Leases {
		if l.Kind != "waiter" {
			n++
		}
	}
	return n
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// stream sends the live part of a page each time that a look has ended.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request, p page) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	to := http.NewResponseController(w)
	if err := to.Flush(); errors.Is(err, http.ErrNotSupported) {
		h.refuse(w, r, http.StatusNotImplemented, "Live updates don't pass what wraps the handler: a http.ResponseWriter without Flush or Unwrap.")
		return
	}
	for after := 0; ; {
		s, err := h.sampler.next(r.Context(), after, p.wants(h, r))
		if err != nil {
			return
		}
		if after = s.number; s.Picture == nil {
			continue
		}
		v, _ := h.show(r, p, s)
		_ = to.SetWriteDeadline(time.Now().Add(patience)) // that of the server is for pages
		event := &lines{w: w, start: true}
		if templates.ExecuteTemplate(event, "live", v) != nil || event.end() != nil || to.Flush() != nil {
			return // the viewer has gone
		}
	}
}

// lines writes lines of an event.
type lines struct {
	w     http.ResponseWriter
	start bool
}

func (l *lines) Write(text []byte) (int, error) {
	var b strings.Builder
	for _, c := range text {
		if l.start {
			b.WriteString("data: ")
		}
		if l.start = c == '\n'; c != '\r' {
			b.WriteByte(c)
		}
	}
	_, err := l.w.Write([]byte(b.String()))
	return len(text), err
}

// end ends the last line, and the event by an empty one.
func (l *lines) end() error {
	end := "\n\n"
	if l.start {
		end = "\n"
	}
	_, err := l.w.Write([]byte(end))
	return err
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(v) // the viewer may have gone
}

// seenForm is what all forms of JSON begin with.
type seenForm struct {
	Taken time.Time `json:"taken"`
	ops.Ages
	Gaps  []ops.Gap `json:"gaps"`
	Error string    `json:"error,omitempty"` // why the rest is old
}

func (c *call) seen() seenForm { return seenForm{c.Taken, c.Ages, c.Gaps, c.problem} }
