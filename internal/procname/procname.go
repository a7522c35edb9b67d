// Package procname names this process, for people who look: nothing depends on the name. And it
// tells goroutines apart.
package procname

import (
	"os"
	"strconv"
	"strings"
)

// Process returns the name of the host, or "unknown", and the number of the process, with
// a text between the two: "web-3/4711". It is valid UTF-8, and has at most 64 bytes of the
// host's name.
func Process(between string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return strings.ToValidUTF8(host[:min(len(host), 64)], "") + between + strconv.Itoa(os.Getpid())
}

// Goroutine returns what tells the calling goroutine from the others that run, and is never 0. When a
// goroutine has ended, another one may get its value.
func Goroutine() uintptr { return goroutine() }
