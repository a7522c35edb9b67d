package txlock

// Remembered returns how many open transactions of this program are known to hold a key.
func Remembered(key Key) (n int) {
	inProgram.mu.Lock()
	defer inProgram.mu.Unlock()
	for s := range inProgram.by {
		if s.name == key.name && s.record == spotOf(new(state), key, s.once).record {
			n++
		}
	}
	return n
}
