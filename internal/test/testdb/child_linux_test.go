package testdb

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The environment of a process that starts a server, and is killed.
const startVariable = "LOCKSTEP_TEST_START"

// init makes this test binary that process.
func init() {
	engine := os.Getenv(startVariable)
	if engine == "" {
		return
	}
	server, err := Start(context.Background(), Engine(engine))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("the server is at", server.Config().Addr, server.inst.halt != nil)
	time.Sleep(time.Hour)
}

// TestServerDiesWithProcess kills a process that has started a server, which
// must be gone then.
func TestServerDiesWithProcess(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		cmd := exec.Command(os.Args[0])
		owner := randomHex(8)
		cmd.Env = append(os.Environ(), startVariable+"="+string(engine), ownerVariable+"="+owner, "TMPDIR="+t.TempDir())
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		var addr string
		var inDocker bool
		_, scanErr := fmt.Fscanf(out, "the server is at %s %t\n", &addr, &inDocker)
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
		if scanErr != nil {
			t.Fatalf("the process did not start a server: %v", scanErr)
		}
		if inDocker {
			defer removeContainer(t, owner)
		}
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(waitTimeout); ; <-tick.C {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				return
			}
			_ = conn.Close()
			if time.Now().After(deadline) {
				t.Fatal("the server outlives the process that started it")
			}
		}
	})
}

// removeContainer removes the container that a process has left, which was killed.
func removeContainer(t *testing.T, owner string) {
	t.Helper()
	id, err := exec.Command("docker", "ps", "--all", "--quiet", "--filter", "label="+ownerLabel+"="+owner).Output()
	check(t, err)
	if err := run(t.Context(), nil, "docker", "rm", "--force", "--volumes", strings.TrimSpace(string(id))); err != nil {
		t.Error(err)
	}
}
