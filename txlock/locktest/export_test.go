package locktest

// Waiting returns how many transactions wait for a lock.
func (k *Kit) Waiting() (n int) {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	for t := range k.server.open {
		if t.waits != nil {
			n++
		}
	}
	return n
}

// Choose sets who is rolled back of the sessions that wait for each other: the index of one, or
// -1 for the Kit's own choice.
func (k *Kit) Choose(f func(sessions []uint64) int) {
	k.server.choose = func(circle []*tx) *tx {
		sessions := make([]uint64, len(circle))
		for i, t := range circle {
			sessions[i] = t.session
		}
		if i := f(sessions); i >= 0 {
			return circle[i]
		}
		return lightest(circle)
	}
}

// Knows reports whether the Kit executes a statement of lockstep's own.
func Knows(text string) bool { return find(text, 0) != nil }
