// Package whoami names this process, for people who look: nothing depends on the name. And it
// tells goroutines apart.
package whoami

import (
	"bytes"
	"os"
	"runtime"
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

// Goroutine returns the number of the calling goroutine, as a stack trace has it: "goroutine
// 4711 [running]". It takes 3 to 25 microseconds, since the runtime prints the whole stack.
func Goroutine() string {
	var trace [64]byte
	return string(bytes.Fields(trace[:runtime.Stack(trace[:], false)])[1])
}
