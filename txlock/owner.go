package txlock

import (
	"context"
	"strings"

	"github.com/dca00107/lockstep/internal/whoami"
)

// maxLabel is the size of the column owner of the tables of transaction locks.
const maxLabel = 80

type labelKey struct{}

// WithLabel labels the transaction locks that are taken under the context, for people: Holders
// and an Observer show the label as the owner. It has at most 80 bytes, the rest is cut off.
// The default is host name and process, "web-3/4711". It has no influence on who gets a lock,
// since the transaction is the owner. The owner of a lease, which may re-enter it, is named by
// lease.WithOwner, and a label is not that.
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

var process = []byte(whoami.Process("/"))
