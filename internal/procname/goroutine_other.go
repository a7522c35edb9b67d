//go:build !gc || purego || !(amd64 || arm64)

package procname

import (
	"bytes"
	"runtime"
	"strconv"
)

// goroutine returns the number of the calling goroutine as a stack trace has it: "goroutine
// 4711 [running]". It takes 3 to 25 microseconds, since the runtime prints the whole stack.
func goroutine() uintptr {
	var trace [64]byte
	number, err := strconv.ParseUint(string(bytes.Fields(trace[:runtime.Stack(trace[:], false)])[1]), 10, 0)
	if err != nil {
		panic("procname: a stack trace without the number of its goroutine: " + err.Error())
	}
	return uintptr(number)
}
