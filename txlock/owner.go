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
	return context.WithValue(ctx, ownerKey{}, owner)
}

func ownerOf(ctx context.Context) string {
	if owner, ok := ctx.Value(ownerKey{}).(string); ok && owner != "" {
		return owner
	}
	return process
}

var process = func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown" // the name is for people who look, nothing depends on it
	}
	return host + "/" + strconv.Itoa(os.Getpid())
}()
