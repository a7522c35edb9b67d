package idempotent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
)

// fingerprint is what distinguishes requests that aren't repetitions of each other: another one
// has another method, address, kind of content or content. What clients choose anew when they
// repeat a request is left out.
func fingerprint(r *http.Request, body []byte) []byte {
	kind, content := contentOf(r.Header.Get("Content-Type"), body)
	return hashed([]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), []byte(kind), content)
}

// contentOf returns the kind of content without the boundary of its parts, and without a charset
// that is UTF-8, and the content without the boundary. What can't be read stays as it is.
func contentOf(kind string, body []byte) (string, []byte) {
	media, parameters, err := mime.ParseMediaType(kind)
	if err != nil {
		return kind, body
	}
	if strings.EqualFold(parameters["charset"], "utf-8") {
		delete(parameters, "charset")
	}
	if boundary, has := parameters["boundary"]; has && strings.HasPrefix(media, "multipart/") {
		parts, err := partsOf(body, boundary)
		if err != nil {
			return kind, body
		}
		delete(parameters, "boundary")
		body = parts
	}
	return cmp.Or(mime.FormatMediaType(media, parameters), kind), body
}

// partsOf returns a hash of the parts of a multipart body: of their headers and contents, in
// their order.
func partsOf(body []byte, boundary string) ([]byte, error) {
	var all [][]byte
	for parts := multipart.NewReader(bytes.NewReader(body), boundary); ; {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return hashed(all...), nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, err
		}
		var header [][]byte
		for _, name := range slices.Sorted(maps.Keys(part.Header)) {
			var values [][]byte
			for _, value := range part.Header[name] {
				values = append(values, []byte(value))
			}
			header = append(header, []byte(name), hashed(values...))
		}
		all = append(all, hashed(header...), content)
	}
}

// statuses are those that are kept, by their number.
type statuses [1000]bool

// statusesOf asks for each status that an answer can have.
func statusesOf(kept func(status int) bool) (all statuses, err error) {
	if kept == nil {
		return all, errors.New("KeepStatuses needs a function, got nil")
	}
	for status := http.StatusOK; status < len(all); status++ {
		if all[status] = kept(status); !all[status] && status < http.StatusBadRequest {
			return all, fmt.Errorf("KeepStatuses leaves out %d: an answer below 400 says that the request was carried out, and would not be true after a rollback", status)
		}
	}
	return all, nil
}
