package txlock

import (
	"context"
	"strings"

	"github.com/dca00107/lockstep/internal/procname"
)

// maxLabel is the size of the column owner of the tables of transaction locks.
const maxLabel = 80

type labelKey struct{}

// WithLabel labels the transaction locks that are acquired under the context, for people: Holders
// and an Observer show the label as the owner. It is cut off after 80 bytes. The default is the
// host and the process number, "web-3/4711". It doesn't influence who gets a lock, because the
// transaction is the owner. A label is not the owner of a lease, which lease.WithOwner sets and
// which may re-enter it.
func WithLabel(ctx context.Context, label string) context.Context {
	if len(label) > maxLabel {
		label = strings.ToValidUTF8(label[:maxLabel], "")
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

var process = []byte(procname.Process("/"))
