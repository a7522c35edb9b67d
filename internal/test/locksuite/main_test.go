package locksuite_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestMain also is the other processes of TestLostUpdates.
func TestMain(m *testing.M) {
	if job := os.Getenv(jobVariable); job != "" {
		if err := runJob(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testdb.Main(m)
}
