package ops

import (
	"fmt"
	"testing"
)

// TestVacant proves that an election without a leader is known, also one for which no process stands.
func TestVacant(t *testing.T) {
	t.Parallel()
	p := &Picture{elections: map[string]bool{"led": true, "waits": true, "left": true}, Leases: []Lease{
		{Key: "led", Kind: "exclusive"}, {Key: "led:standby", Kind: "permit", Label: "a"}, {Key: "waits:standby", Kind: "permit", Label: "b"}, {Key: "waits", Kind: "reader"},
	}}
	if got := fmt.Sprint(p.Vacant()[0].Key, p.Vacant()[0].Standby, p.Vacant()[1].Key, p.Vacant()[1].Standby); len(p.Vacant()) != 2 || got != "left[]waits[b]" {
		t.Errorf("without a leader are %s", got)
	}
}
