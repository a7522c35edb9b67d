package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestNothingFound proves that the exit code is 1 where nothing is found, with --json too, and that
// who can't see the locks isn't told that there are none.
func TestNothingFound(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for _, args := range [][]string{{"locks"}, {"leases"}, {"waits"}, {"show", "order:42"}, {"jobs"}, {"once"}, {"leaders"}} {
			var output string
			var code int
			// Another test's wait for a table, which MariaDB doesn't name, may be one for ours.
			testdb.Await(time.Minute, func() bool { output, code = s.call(append(args, "--json")...); return code == nothing })
			if code != nothing || !strings.Contains(output, "{") {
				t.Errorf("lockstep %v --json returns %d, and prints:\n%s", args, code, output)
			}
		}
		s.dsn = s.db.DSN() // without PROCESS
		for _, args := range [][]string{{"locks"}, {"waits"}, {"show", "order:42"}} {
			if output, code := s.call(args...); code != nothing || !strings.Contains(output, "it can't be seen: ") {
				t.Errorf("lockstep %v without PROCESS returns %d, and prints:\n%s", args, code, output)
			}
		}
	})
}

// TestFullDisk proves that a command whose output is lost doesn't end as if it were written.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"version", "--json"}, {"sql", "install"}, {"--help"}} {
		var said bytes.Buffer
		code := run(t.Context(), args, func(string) string { return "" }, strings.NewReader(""), full{}, &said)
		if code != trouble || !strings.Contains(said.String(), errFull.Error()) {
			t.Errorf("lockstep %v returns %d, and prints %s", args, code, &said)
		}
	}
}

var errFull = errors.New("no space left on device")

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestInterruptedQuestion proves that a question ends at once when the command is interrupted.
func TestInterruptedQuestion(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		ctx, interrupt := context.WithCancel(t.Context())
		keyboard, typed := io.Pipe()
		defer func() { _ = typed.Close() }()
		screen := &watched{until: "Type yes", then: interrupt}
		code := make(chan int, 1)
		go func() {
			code <- run(ctx, []string{"purge"}, s.getenv, keyboard, io.Discard, screen)
		}()
		select {
		case got := <-code:
			if got != declined || !strings.Contains(screen.text.String(), "nothing was done") {
				t.Errorf("it returns %d, and prints %s", got, screen.text.String())
			}
		case <-time.After(time.Minute):
			t.Error("it waits for an answer")
		}
	})
}

// TestEncryptionOfMyCnf proves that a my.cnf that demands an encrypted connection has one or none,
// and that settings which aren't obeyed are refused.
func TestEncryptionOfMyCnf(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		c := s.db.AdminConfig()
		host, port, _ := strings.Cut(c.Addr, ":")
		login := "[client]\nhost=" + host + "\nport=" + port + "\nuser=" + c.User + "\npassword=" + c.Passwd + "\ndatabase=" + c.DBName + "\n"
		for setting, want := range map[string]struct {
			code int
			says string
		}{
			"ssl-cipher=AES": {usage, "ssl-cipher"}, "tls_version=TLSv1.3": {usage, "tls-version"}, "ssl-mode=STRICT": {usage, "STRICT"},
			"ssl-ca=/no/such/file": {usage, "/no/such/file"}, "ssl-cert=/no/such/file": {usage, "/no/such/file"},
			"ssl-mode=VERIFY_IDENTITY": {trouble, ""}, "ssl_mode=VERIFY_CA": {trouble, ""}, "ssl-verify-server-cert": {trouble, ""},
			"ssl-mode=DISABLED": {nothing, ""}, "skip-ssl": {nothing, ""}, "ssl-mode=PREFERRED": {nothing, ""}, "ssl=0": {nothing, ""},
		} {
			output, code := called(t, nil, "", "--defaults-file", file(t, t.TempDir(), "my.cnf", login+setting+"\n"), "locks")
			if code != want.code || !strings.Contains(output, want.says) {
				t.Errorf("with %s it returns %d, and prints %s", setting, code, output)
			}
		}
	})
}

// TestPurgeOfMany proves that purge goes on beyond --timeout while it removes rows, and says so,
// and that it gives up when it removes none.
func TestPurgeOfMany(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		removes []int // in each part; none is left behind the last one
		stuck   bool
		total   int
		lines   string
	}{
		{[]int{500, 500, 1000}, false, 2000, "500 rows of locks were removed so far.\n1000 rows of locks were removed so far.\n2000 rows of locks were removed so far.\n"},
		{[]int{500}, true, 500, "500 rows of locks were removed so far.\n"},
		{nil, false, 0, ""},
		{nil, true, 0, ""},
	} {
		var said bytes.Buffer
		a := &app{err: &said, timeout: 50 * time.Millisecond}
		total, err := a.inParts(t.Context(), "locks", func(ctx context.Context) (int, error) {
			if len(test.removes) == 0 && !test.stuck {
				return 0, nil
			}
			<-ctx.Done()
			if len(test.removes) == 0 {
				return 0, ctx.Err()
			}
			n := test.removes[0]
			test.removes = test.removes[1:]
			return n, ctx.Err()
		})
		if total != test.total || said.String() != test.lines || errors.Is(err, context.DeadlineExceeded) != test.stuck {
			t.Errorf("%d rows are removed, %v, and it says:\n%s\nwant %d and\n%s", total, err, &said, test.total, test.lines)
		}
	}
}
