package load

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

// Hold is for how long a client has believed to hold a lease: from the end of
// Acquire to the beginning of the last look that said so.
type Hold struct {
	Client     int
	Token      uint64
	Begun, End time.Duration
}

// History is what the clients of a lease, or of a semaphore, have believed.
type History struct {
	*Ledger
	most  int // how many may hold it at once
	Began time.Time
	holds []Hold
}

// NewHistory makes one.
func NewHistory(kind string, most int) *History {
	return &History{Ledger: NewLedger(kind, ""), most: most, Began: time.Now()}
}

// Add adds what a client has believed.
func (h *History) Add(one Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds = append(h.holds, one)
}

// Check says that no more have held the lease at once than may, and that the tokens of
// one holder at a time rise.
func (h *History) Check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.holds, func(a, b Hold) int { return cmp.Compare(a.Begun, b.Begun) })
	byClient := make(map[int]int)
	for i, after := range h.holds {
		byClient[after.Client]++
		held := []Hold{after}
		for _, before := range h.holds[:i] {
			if after.Begun < before.End {
				held = append(held, before)
			}
		}
		if len(held) > h.most {
			t.Errorf("%s: held by %d at once: %v", h.Kind, len(held), held)
		}
		if i > 0 && h.most == 1 && after.Token <= h.holds[i-1].Token {
			t.Errorf("%s: the token falls: %v and %v", h.Kind, h.holds[i-1], after)
		}
	}
	t.Logf("%s: %d grants, by client %v, errors %v", h.Kind, len(h.holds), byClient, h.errors)
	if len(byClient) < 2 {
		t.Errorf("%s: only %d clients were granted the lease", h.Kind, len(byClient))
	}
}

// String is the hold with times that can be read.
func (h Hold) String() string {
	return fmt.Sprintf("client %d, token %d, %v to %v", h.Client, h.Token, h.Begun, h.End)
}
