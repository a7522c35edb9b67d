package doctest

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// shell is the one shell that a reader has, with its directory, variables and jobs.
type shell struct {
	stdin  io.Writer
	stdout *bufio.Reader
	end    string // no command prints this
	script string
}

// open starts the shell. It ends with the test, and with it all that it has started.
func (r Reader) open(t testing.TB, dir string) *shell {
	t.Helper()
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), r.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, out, err := os.Pipe()
	check(t, err)
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Start()
	_ = out.Close()
	check(t, err)
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // says that it was killed
		_ = stdout.Close()
	})
	return &shell{stdin: stdin, stdout: bufio.NewReader(stdout), end: "end of " + rand.Text(), script: filepath.Join(t.TempDir(), "command")}
}

// run runs a command and returns what it prints, and its exit status if that isn't 0.
func (s *shell) run(command string) (string, error) {
	if err := os.WriteFile(s.script, []byte(command+"\n"), 0o600); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(s.stdin, ". '%s' </dev/null\necho \"\n%s $?\"\n", s.script, s.end); err != nil {
		return "", err
	}
	var printed strings.Builder
	for {
		line, err := s.stdout.ReadString('\n')
		if err != nil {
			return printed.String(), fmt.Errorf("the shell has ended: %w", err)
		}
		status, ended := strings.CutPrefix(line, s.end+" ")
		if !ended {
			printed.WriteString(line)
			continue
		}
		if code, err := strconv.Atoi(strings.TrimSpace(status)); err != nil || code != 0 {
			err = fmt.Errorf("exit status %d", code)
			return strings.TrimSpace(printed.String()), err
		}
		return strings.TrimSpace(printed.String()), nil
	}
}

// write writes a file, relative to the directory in which the shell is.
func (s *shell) write(name, text string) error {
	dir, err := s.run("pwd")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
