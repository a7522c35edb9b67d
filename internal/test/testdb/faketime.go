package testdb

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Ahead lets the server's clock be so far ahead of this machine's, as that of a node whose
// clock is wrong. It needs a server of this machine, and libfaketime, which is installed if it
// is missing. The default is the machine's clock.
func Ahead(d time.Duration) Option {
	return func(o *options) { o.ahead = d }
}

// environment is that of the server's process. The clock that only moves on is shifted, too:
// with FAKETIME_DONT_FAKE_MONOTONIC some waits take longer by the shift.
func (o options) environment(ctx context.Context) ([]string, error) {
	environment := append(os.Environ(), o.env...)
	if o.ahead == 0 {
		return environment, nil
	}
	library, err := Libfaketime(ctx)
	if err != nil {
		return nil, err
	}
	return append(environment, "LD_PRELOAD="+library, fmt.Sprintf("FAKETIME=%+.3fs", o.ahead.Seconds()),
		"FAKETIME_FORCE_MONOTONIC_FIX=0"), nil // MySQL's condition variables spin otherwise
}

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
