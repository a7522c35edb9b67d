package testdb

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestServerDiesWithProcess kills a process that has started a server, which
// must be gone then.
func TestServerDiesWithProcess(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	eachEngine(t, func(t *testing.T, engine Engine) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$", "-test.v")
		cmd.Env = append(os.Environ(), "TESTDB_HELPER_ENGINE="+string(engine), "TMPDIR="+t.TempDir())
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		addr := ""
		for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
			addr, _ = strings.CutPrefix(lines.Text(), "the server is at ")
			if addr == lines.Text() {
				addr = ""
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if addr == "" {
			t.Fatal("the process did not start a server")
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

// TestHelperProcess is the process that TestServerDiesWithProcess kills.
func TestHelperProcess(t *testing.T) {
	engine := os.Getenv("TESTDB_HELPER_ENGINE")
	if engine == "" {
		t.Skip("no test of its own")
	}
	server := Dedicated(t, Engine(engine))
	fmt.Println("the server is at " + server.Config().Addr)
	select {}
}

func TestChildGroupDies(t *testing.T) {
	t.Parallel()
	c, err := StartChild(exec.Command("sh", "-c", "sleep 60 & wait"))
	if err != nil {
		t.Fatal(err)
	}
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
			if err := os.WriteFile(filepath.Join(dir, "docker-entrypoint.sh"), []byte("#!/bin/sh\n"+entry+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-c", supervise, "lockstep", "server")
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			input, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			output, stdout, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = output.Close() }()
			cmd.Stdout = stdout
			c, err := StartChild(cmd)
			_ = stdout.Close()
			if err != nil {
				t.Fatal(err)
			}
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
