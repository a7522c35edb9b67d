package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dca00107/lockstep/bench/stats"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

var must = testdb.Must

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that answers each line with itself.
func echo(t *testing.T) string {
	t.Helper()
	listener := testdb.Got(net.Listen("tcp", "127.0.0.1:0"))(t)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

func start(t *testing.T, target string, roundTrip time.Duration) *Proxy {
	t.Helper()
	p := testdb.Got(Start("tcp", target, roundTrip, Anything))(t)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// client returns a function that sends a line and waits for its echo.
func client(t *testing.T, addr string) (ask func(line string) time.Duration, conn net.Conn) {
	t.Helper()
	conn = testdb.Got(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { _ = conn.Close() })
	answers := bufio.NewReader(conn)
	return func(line string) time.Duration {
		began := time.Now()
		_, err := io.WriteString(conn, line+"\n")
		testdb.FatalIf(t, err != nil, "%v", err)
		answer, err := answers.ReadString('\n')
		testdb.FatalIf(t, err != nil || answer != line+"\n", "%q is answered by %q, %v", line, answer, err)
		return time.Since(began)
	}, conn
}

// TestDistance proves that a round trip takes as long as it was set, never less, and that
// each is counted once.
func TestDistance(t *testing.T) {
	server := echo(t)
	for _, roundTrip := range []time.Duration{0, 500 * time.Microsecond, 20 * time.Millisecond} {
		p := start(t, server, roundTrip)
		ask, _ := client(t, p.Addr())
		const asked = 20
		var took []float64
		for range asked {
			one := ask("what time is it")
			testdb.ErrorIf(t, one < roundTrip, "round trip of %v in %v", roundTrip, one)
			took = append(took, one.Seconds()*1e6)
		}
		t.Logf("%v: %.0f us", roundTrip, stats.Percentile(took, 50))
		counts := p.Counts()
		testdb.ErrorIf(t, counts.Trips != asked, "%d round trips of %d", counts.Trips, asked)
		testdb.ErrorIf(t, counts.Answering < asked*roundTrip, "answers took %v in all", counts.Answering)
		must(t, p.Close())
	}
}

// packet is one of the MySQL protocol.
func packet(sequence byte, body string) string {
	return string([]byte{byte(len(body)), byte(len(body) >> 8), byte(len(body) >> 16), sequence}) + body
}

// TestMeters proves what is counted, wherever the bytes are cut.
func TestMeters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		meter func() meter
		bytes string
		want  int64
	}{
		"MySQL commands": {
			MySQL.fromClient,
			packet(1, strings.Repeat("handshake", 40)) + packet(0, "\x03SELECT 1") + packet(0, "\x16") +
				packet(0, "\x19\x01\x00\x00\x00") + packet(0, "\x17"+strings.Repeat("x", 70_000)) + packet(2, "") + packet(0, "\x01"),
			3,
		},
		"MySQL deadlocks": {
			MySQL.fromServer,
			packet(0, "\x0agreeting") + packet(1, "\x00\x00\x00") + packet(1, "\xff\xbd\x04#40001Deadlock found") +
				packet(1, "\xff\xb5\x04#HY000Lock wait timeout") + packet(1, "\xff\xf2\x0b#HY000Deadlock found") + packet(3, "\xfe"),
			2,
		},
		"Redis requests": {
			Redis.fromClient,
			"*3\r\n$3\r\nSET\r\n$3\r\n*a\n\r\n$4\r\n$1\r\n\r\n*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
			3,
		},
		"anything": {Anything.fromClient, packet(0, "\x03SELECT 1"), 0},
	} {
		for _, size := range []int{1, 2, 3, 5, 7, 64, len(c.bytes)} {
			meter := c.meter()
			var n int64
			for rest := []byte(c.bytes); len(rest) > 0; {
				part := rest[:min(size, len(rest))]
				rest = rest[len(part):]
				n += meter.count(part)
			}
			testdb.Equal(t, fmt.Sprint(name, " in parts of ", size), n, c.want)
		}
	}
}
