package idempotent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/dca00107/lockstep/txlock"
)

// Transact runs body in a transaction, whose context body is given, and commits unless
// body returns an error. It runs again what Run and Transaction run again.
type Transact func(ctx context.Context, body func(ctx context.Context, scope *txlock.Scope) error) error

// Handler answers requests in transactions, and repeated ones as the first. It panics for an
// option out of its range. See locksqlc.OnceHandler.
func Handler(transact Transact, next http.Handler, options []Option) http.Handler {
	c, err := configOf(options)
	if err == nil && next == nil {
		err = errors.New("a handler is needed, got nil")
	}
	if err != nil {
		panic(fmt.Errorf("lockstep: OnceHandler: %w", err))
	}
	return &handler{transact: transact, next: next, config: c}
}

type handler struct {
	config
	transact Transact
	next     http.Handler
}

// replayed is the header of an answer that is repeated.
const replayed = "Idempotent-Replayed"

// Answer is what is stored of an answer.
type Answer struct {
	Status int    `json:"status"`
	Header values `json:"header,omitempty"` // what takes the place of what others set
	Added  values `json:"added,omitempty"`  // what is added to it
	Body   []byte `json:"body,omitempty"`
}

// values are those of headers, which may be no UTF-8.
type values map[string][][]byte

// ServeHTTP answers a request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, err := keyOf(r)
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, "Idempotency-Key is not valid", err.Error())
		return
	case name == "" && h.required && !idempotent(r.Method):
		refuse(w, http.StatusBadRequest, "Idempotency-Key is missing", "This operation needs a header Idempotency-Key, the same for every repetition of a request.")
		return
	}
	body, ok := h.read(w, r)
	if !ok {
		return
	}
	// The handler may change its request.
	keyed, key, asked := name != "" && !safe(r.Method), h.key(r, name), h.once(r, body)
	var answered *recorder // what the handler has said last
	answer, first := Answer{}, true
	err = h.transact(r.Context(), func(ctx context.Context, scope *txlock.Scope) (err error) {
		answered = nil
		run := func() (Answer, error) {
			answered = newRecorder(w.Header(), h.maxAnswer)
			return h.serve(ctx, scope, answered, r, body)
		}
		if !keyed {
			answer, err = run()
			return err
		}
		if h.conflictAfter > 0 {
			scope = scope.WaitAtMost(h.conflictAfter)
		}
		answer, first, err = Value(ctx, scope, key, asked, run)
		return err
	})
	switch {
	case err == nil && first:
		answered.send(w)
	case err == nil:
		h.replay(w, answer)
	case errors.Is(err, errFailed):
		answered.send(w)
		h.failed(r, err)
	default:
		h.failed(r, err)
		explain(w, err, keyed, answered != nil)
	}
}

// read reads the body of the request, which the handler may be given several times.
func (h *handler) read(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	if r.Body == nil {
		return nil, true
	}
	var read bytes.Buffer
	_, err := read.ReadFrom(http.MaxBytesReader(w, r.Body, h.maxBody))
	if tooLong := new(http.MaxBytesError); errors.As(err, &tooLong) {
		refuse(w, http.StatusRequestEntityTooLarge, "The body is too large", fmt.Sprintf("At most %d bytes are allowed.", tooLong.Limit))
		return nil, false
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "The body can't be read", "")
		return nil, false
	}
	if read.Len() == 0 && r.ContentLength > 0 { // it would be the same for all requests
		h.failed(r, errors.New("lockstep: the body was read before OnceHandler could"))
		refuse(w, http.StatusInternalServerError, "The request can't be distinguished from another one", "Nothing was done.")
		return nil, false
	}
	return read.Bytes(), true
}

// serve calls the handler once. What it has done is rolled back if it fails.
func (h *handler) serve(ctx context.Context, scope *txlock.Scope, to *recorder, r *http.Request, body []byte) (Answer, error) {
	work := &work{}
	ctx = context.WithValue(ctx, workKey{}, work)
	request := r.WithContext(ctx)
	request.Body = http.NoBody
	if len(body) > 0 {
		request.Body = readCloser{bytes.NewReader(body)}
	}
	h.next.ServeHTTP(to, request)
	to.WriteHeader(http.StatusOK) // where the handler has written nothing
	if request.MultipartForm != nil {
		_ = request.MultipartForm.RemoveAll() // as net/http does, which knows another request
	}
	err := work.err
	switch {
	case to.err != nil:
		return Answer{}, to.err
	case err == nil && h.statuses[to.code]:
		return h.answerOf(to), nil
	case err == nil || to.code >= http.StatusBadRequest: // any other answer would not be true
		err = failed{cause: err, status: to.code}
	}
	if ended := scope.Verify(ctx); ended != nil {
		err = fmt.Errorf("%w: %w", ended, err) // the handler may have failed for that
	}
	return Answer{}, inner.Final(ctx, scope, err)
}

// added are the headers to which handlers add values rather than set one.
var added = map[string]bool{"Link": true, "Set-Cookie": true, "Vary": true}

// answerOf is what is stored of an answer: of its headers those that the handler has set, added to, or
// removed. What others have set around it is theirs to set again, as for another encoding. A header
// without values shows no difference between the two ways to give it the first one, so its name decides.
// Nor can a handler be seen that has set what others have set already: that counts as theirs, because to
// repeat what may be theirs alone, a Content-Encoding for example, could make an answer unreadable.
func (h *handler) answerOf(from *recorder) Answer {
	a := Answer{Status: from.code, Header: make(values), Added: make(values), Body: from.body.Bytes()}
	for _, name := range h.headers {
		name = http.CanonicalHeaderKey(name)
		outer, sent := from.outer[name], from.sent[name]
		begins := len(sent) > len(outer) && slices.Equal(sent[:len(outer)], outer)
		switch {
		case slices.Equal(sent, outer):
		case begins && (len(outer) > 0 || added[name]):
			a.Added[name] = bytesOf(sent[len(outer):])
		default:
			a.Header[name] = bytesOf(sent)
		}
	}
	return a
}

func bytesOf(values []string) (texts [][]byte) {
	for _, value := range values {
		texts = append(texts, []byte(value))
	}
	return texts
}

// replay repeats an answer.
func (h *handler) replay(w http.ResponseWriter, a Answer) {
	for name, texts := range a.Header {
		w.Header().Del(name)
		for _, text := range texts {
			w.Header().Add(name, string(text))
		}
	}
	for name, texts := range a.Added {
		outer := slices.Clone(w.Header()[name])
		for _, text := range texts {
			if !slices.Contains(outer, string(text)) {
				w.Header().Add(name, string(text))
			}
		}
	}
	w.Header().Set(replayed, "true")
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // the client is gone
}

// explain answers a request that has no answer of the handler. It has run, or the key has
// refused it.
func explain(w http.ResponseWriter, err error, keyed, ran bool) {
	kept := errors.Is(err, txlock.ErrResult) || errors.Is(err, errTooLong)
	switch {
	case ran && kept:
		refuse(w, http.StatusInternalServerError, "The answer can't be kept", "Nothing was done.")
	case kept:
		refuse(w, http.StatusInternalServerError, "The first answer was not kept", "The first request with this key was carried out, or a part of it.")
	case !ran && errors.Is(err, txlock.ErrMismatch):
		refuse(w, http.StatusUnprocessableEntity, "Idempotency-Key is already used", "The key was used for another request. Send a new request with a new key.")
	case !ran && errors.Is(err, txlock.ErrWaitTimeout):
		refuse(w, http.StatusConflict, "A request is outstanding for this Idempotency-Key", "The first request with this key is still being processed. Repeat it later, with the same key.")
	case !keyed:
		refuse(w, http.StatusServiceUnavailable, "The request has no answer", "It may have been carried out.")
	default: // so may this one
		refuse(w, http.StatusServiceUnavailable, "The request has no answer", "Repeat it later, with the same key: it is carried out once.")
	}
}

// failed tells the program of an error.
func (h *handler) failed(r *http.Request, err error) {
	if h.onError != nil {
		h.onError(r, err)
	}
}

// errFailed is matched by a failed.
var errFailed = errors.New("the handler has failed")

// failed is the error of a handler that has answered.
type failed struct {
	cause  error
	status int
}

func (f failed) Error() string {
	if f.cause != nil {
		return fmt.Sprintf("%v: %v", errFailed, f.cause)
	}
	return fmt.Sprintf("%v: it has answered %d", errFailed, f.status)
}

func (f failed) Unwrap() []error {
	if f.cause == nil {
		return []error{errFailed}
	}
	return []error{errFailed, f.cause}
}

// work is one call of the handler.
type work struct{ err error }

type workKey struct{}

// errNoReason is the error of a handler that fails with nil.
var errNoReason = errors.New("idempotency: Fail was called with a nil error")

// Fail makes the call of the handler whose context this is fail. It returns whether there
// is one.
func Fail(ctx context.Context, err error) bool {
	w, ok := ctx.Value(workKey{}).(*work)
	if ok {
		w.err = errors.Join(w.err, cmp.Or(err, errNoReason))
	}
	return ok
}
