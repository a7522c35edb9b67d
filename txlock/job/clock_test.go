package job

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// wrongClock belongs to the package time of a process whose clock is wrong.
const wrongClock = `package time

import "syscall"

var wrongBy = func() Duration {
	text, _ := syscall.Getenv("` + childClock + `")
	d, _ := ParseDuration(text)
	return d
}()

func wrong(sec int64, nsec int32) (int64, int32) {
	ns := int64(nsec) + int64(wrongBy%Second) + int64(Second)
	return sec + int64(wrongBy/Second) + ns/int64(Second) - 1, int32(ns % int64(Second))
}
`

// withWrongClocks builds this test anew with a package time that reads the environment:
// there all code, also that of leases and of the driver, sees the clock that is wrong. It
// takes a minute. It returns the program.
func withWrongClocks(t *testing.T) string {
	t.Helper()
	const now = "\tsec, nsec, mono := runtimeNow()\n"
	source := filepath.Join(runtime.GOROOT(), "src", "time", "time.go") //nolint:staticcheck // the test runs where it was built
	text, err := os.ReadFile(source)
	must(t, err)
	if !strings.Contains(string(text), now) {
		t.Fatalf("%s has no %q: this test must learn how time.Now of this Go reads the clock", source, now)
	}
	dir := t.TempDir()
	wrong, more, overlay, program := filepath.Join(dir, "time.go"), filepath.Join(dir, "wrong.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "job.test")
	must(t, os.WriteFile(wrong, []byte(strings.Replace(string(text), now, now+"\tsec, nsec = wrong(sec, nsec)\n", 1)), 0o600))
	must(t, os.WriteFile(more, []byte(wrongClock), 0o600))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{source: wrong, filepath.Join(filepath.Dir(source), "wrong.go"): more}})
	must(t, err)
	must(t, os.WriteFile(overlay, replace, 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-race", "-overlay", overlay, "-o", program, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
