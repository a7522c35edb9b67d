package testdb

import (
	"context"
	"fmt"
	"path/filepath"
)

// Libfaketime returns the path of the library that sets the clocks of a process with threads. It
// installs the library if it is missing, as root on Debian.
func Libfaketime(ctx context.Context) (string, error) {
	find := func() string {
		for _, pattern := range []string{"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1"} {
			if found, _ := filepath.Glob(pattern); len(found) > 0 { // the pattern is right
				return found[0]
			}
		}
		return ""
	}
	if path := find(); path != "" {
		return path, nil
	}
	err := aptInstall(ctx, "libfaketime")
	if path := find(); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("a server with another clock needs libfaketime (Debian: apt-get install libfaketime): %w", err)
}
