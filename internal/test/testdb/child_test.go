package testdb

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// writeProgram writes a file that is executed next, which the system refuses while a
// process that is just being started has it open from here.
func writeProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

func TestChildGroupDies(t *testing.T) {
	t.Parallel()
	c, err := StartChild(exec.Command("sh", "-c", "sleep 60 & wait"))
	check(t, err)
	c.Kill()
	if c.Running() {
		t.Error("the child runs after kill")
	}
	if _, err := StartChild(exec.Command("/nonexistent")); err == nil {
		t.Error("a program that does not exist was started")
	}
}

// TestSuperviseEndsWithInput runs the container's first process here, with an
// entry point that would stay.
func TestSuperviseEndsWithInput(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]string{
		"input ends":  "echo up; exec sleep 60",
		"server ends": "echo up; exit 3",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			check(t, writeProgram(filepath.Join(dir, "docker-entrypoint.sh"), "#!/bin/sh\n"+entry+"\n"))
			cmd := exec.Command("sh", "-c", supervise, "lockstep", "server")
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			input, err := cmd.StdinPipe()
			check(t, err)
			output, stdout, err := os.Pipe()
			check(t, err)
			defer func() { _ = output.Close() }()
			cmd.Stdout = stdout
			c, err := StartChild(cmd)
			_ = stdout.Close()
			check(t, err)
			defer c.Kill()
			if line, err := bufio.NewReader(output).ReadString('\n'); line != "up\n" {
				t.Fatalf("the entry point said %q, %v", line, err)
			}
			if name == "input ends" {
				if !c.Running() {
					t.Error("it ends while its input is open")
				}
				_ = input.Close()
			}
			select {
			case <-c.done:
			case <-time.After(waitTimeout):
				t.Error("it does not end")
			}
		})
	}
}
