package txlock

import (
	"context"
	"os"
	"strconv"
)

type labelKey struct{}

// WithLabel labels the transaction locks that are taken under the context, for people:
// Holders and an Observer show the label as the owner. It has at most 255 bytes, the rest
// is cut off. The default is host name and process, "web-3/4711". It has no influence on
// who gets a lock, since the transaction is the owner. The owner of a lease, who may
// re-enter it, is named by lease.WithOwner, and a label is not that.
func WithLabel(ctx context.Context, label string) context.Context {
	if len(label) > maxKey {
		label = label[:maxKey]
	}
	return context.WithValue(ctx, labelKey{}, []byte(label))
}

// ownerOf returns the label of the locks that are taken under the context, or the default.
func ownerOf(ctx context.Context) []byte {
	if owner, ok := ctx.Value(labelKey{}).([]byte); ok && len(owner) > 0 {
		return owner
	}
	return process
}

var process = func() []byte {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown" // the name is for people who look, nothing depends on it
	}
	return []byte(host + "/" + strconv.Itoa(os.Getpid()))
}()
