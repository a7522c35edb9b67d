package lockotel

import (
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock/job"
)

// TestWorst proves that jobs above the number of names have the values of the worst of them.
func TestWorst(t *testing.T) {
	t.Parallel()
	var all []job.Status
	for i := range mostNames {
		all = append(all, job.Status{Key: fmt.Sprint("job ", i), Done: time.Unix(9, 0)})
	}
	all = append(all,
		job.Status{Key: "x", Overdue: time.Hour, Failing: 1},
		job.Status{Key: "y", TooLong: time.Minute, Failing: 7, Done: time.Unix(5, 0)},
		job.Status{Key: "z", Done: time.Unix(7, 0)})
	by := new(Observer).worst(all)
	if w := by[other]; len(by) != mostNames+1 || w.Overdue != time.Hour || w.TooLong != time.Minute || w.Failing != 7 || !w.Done.Equal(time.Unix(5, 0)) {
		t.Errorf("%d jobs are measured, the others as %+v", len(by), w)
	}
}
