package txlock

import (
	"context"
	"os"
	"strconv"
)

type ownerKey struct{}

// WithOwner names the owner of the locks that are taken under the context, as
// Holders shows it: at most 255 bytes, the rest is cut off. It has no influence
// on who gets a lock. The default is host name and process, "web-3/4711".
func WithOwner(ctx context.Context, owner string) context.Context {
	if len(owner) > maxKey {
		owner = owner[:maxKey]
	}
	return context.WithValue(ctx, ownerKey{}, []byte(owner))
}

// ownerOf returns the owner of the locks that are taken under the context.
func ownerOf(ctx context.Context) []byte {
	if owner, ok := ctx.Value(ownerKey{}).([]byte); ok && len(owner) > 0 {
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
