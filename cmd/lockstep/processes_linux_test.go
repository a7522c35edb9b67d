package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// inProcessList tells in which processes of this machine everybody can see a text, as ps does.
func inProcessList(t *testing.T, text string) (commands []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatalf("no processes: %v", err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && bytes.Contains(line, []byte(text)) { // else it has ended
			commands = append(commands, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return commands
}

// TestPasswordIsNotInProcessList proves of the real list of processes that the password isn't
// in it while the command runs, in whichever way it was given, nor in what it prints; and that
// one on the command line would be seen there.
func TestPasswordIsNotInProcessList(t *testing.T) {
	t.Parallel()
	const secret = "pr0c-s3cret-word"
	dir := t.TempDir()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes the connection, and never answers
	check(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	connected := make(chan net.Conn)
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			connected <- conn
		}
	}()
	address := silent.Addr().String()
	host, port, err := net.SplitHostPort(address)
	check(t, err)
	dsn := "app:" + secret + "@tcp(" + address + ")/shop"
	cnf := "[client]\nuser=app\npassword=" + secret + "\nhost=" + host + "\nport=" + port + "\ndatabase=shop\n"
	file(t, dir, ".my.cnf", cnf)
	for name, c := range map[string]struct {
		args  []string
		env   string
		stdin string
		seen  bool
	}{
		"environment":        {args: []string{"locks"}, env: "LOCKSTEP_DSN=" + dsn},
		"password alone":     {args: []string{"locks", "--dsn", "app@tcp(" + address + ")/shop"}, env: "LOCKSTEP_PASSWORD=" + secret},
		"file":               {args: []string{"waits", "--dsn-file", file(t, dir, "dsn", dsn)}},
		"standard input":     {args: []string{"leases", "--dsn-file", "-"}, stdin: dsn + "\n"},
		"my.cnf":             {args: []string{"check", "--defaults-file", file(t, dir, "my.cnf", cnf)}},
		"my.cnf at home":     {args: []string{"locks"}, env: "HOME=" + dir},
		"another's argument": {args: []string{"show", secret}, env: "LOCKSTEP_DSN=" + strings.Replace(dsn, secret, "another", 1), seen: true},
	} {
		cmd := exec.Command(os.Args[0], append(c.args, "--timeout", "1m")...)
		cmd.Env = append(os.Environ(), asCommand+"=1", "LOCKSTEP_DSN=", c.env)
		cmd.Stdin = strings.NewReader(c.stdin)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		check(t, cmd.Start())
		select {
		case conn := <-connected:
			if seen := inProcessList(t, secret); len(seen) > 0 != c.seen {
				t.Errorf("%s: in the list of processes are %q", name, seen)
			}
			_ = conn.Close()
		case <-time.After(time.Minute):
			t.Errorf("%s: the command doesn't connect", name)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if strings.Contains(out.String(), secret) {
			t.Errorf("%s: it prints\n%s", name, &out)
		}
	}
}
