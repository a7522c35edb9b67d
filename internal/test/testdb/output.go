package testdb

import (
	"bytes"
	"sync"
)

// Output keeps what several goroutines write.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds a text.
func (o *Output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

// String returns all that was written.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
