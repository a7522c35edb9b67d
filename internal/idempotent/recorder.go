package idempotent

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
)

// recorder keeps the answer of a handler until its transaction is committed.
type recorder struct {
	outer  http.Header // what others have set before
	header http.Header // the handler's
	sent   http.Header // as they were when the status was written
	code   int         // 0: none was written
	body   bytes.Buffer
	most   int
	err    error // the answer is too long
}

// newRecorder returns a recorder whose headers are those that others have set already.
func newRecorder(header http.Header, most int) *recorder {
	return &recorder{outer: header.Clone(), header: header.Clone(), most: most}
}

// errTooLong is the error of an answer that can't be stored.
var errTooLong = errors.New("lockstep: the answer is too long")

func (r *recorder) Header() http.Header { return r.header }

// WriteHeader keeps the first status that is an answer, and the headers. It panics where net/http
// does.
func (r *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if r.code == 0 && status >= http.StatusOK {
		r.code, r.sent = status, r.header.Clone()
	}
}

func (r *recorder) Write(text []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.body.Len()+len(text) > r.most {
		r.err = fmt.Errorf("%w: more than %d bytes", errTooLong, r.most)
		return 0, r.err
	}
	return r.body.Write(text)
}

// send gives the answer to the client. net/http ignores what is set behind it, but for trailers.
func (r *recorder) send(w http.ResponseWriter) {
	clear(w.Header())
	maps.Copy(w.Header(), r.sent)
	w.WriteHeader(r.code)
	_, _ = w.Write(r.body.Bytes()) // the client is gone
	maps.Copy(w.Header(), r.header)
}
