package txlock

// Remembered returns how many open transactions of this program are known to hold a key.
func Remembered(key Key) (n int) {
	inProgram.mu.Lock()
	defer inProgram.mu.Unlock()
	of := func(s spot) bool { return s.record == spotOf(new(state), key, s.once).record }
	for s := range inProgram.by {
		if of(s) {
			n++
		}
	}
	for s := range inProgram.shared {
		if of(s) {
			n++
		}
	}
	return n
}
