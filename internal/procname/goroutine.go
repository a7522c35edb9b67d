//go:build gc && !purego && (amd64 || arm64)

package procname

// goroutine returns where the runtime keeps its record of the calling goroutine. Records are
// neither moved nor freed. A register has the address, for which Go's assembler has a name
// ("A Quick Guide to Go's Assembler", go.dev/doc/asm): nothing in the record is read.
func goroutine() uintptr
