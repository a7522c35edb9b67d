package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/faults"
)

// process is a client, in its lives one after the other.
type process struct {
	name    string
	network *faults.Network
	life    int
	process *testdb.Child
	orders  io.WriteCloser
	errors  string // the path of what it says
}

// start begins a life of a client, whose clock is set apart by that much.
func (s *site) start(i int, apart time.Duration) error {
	p := s.clients[i]
	p.life++
	name := fmt.Sprintf("%s.%d", p.name, p.life)
	cfg := s.config()
	cfg.Addr = p.network.Addr()
	choice := rand.New(rand.NewPCG(s.seed, s.stream((i+1)<<32|p.life)))
	config := clientConfig{
		Name: name, Engine: s.engine, DSN: cfg.FormatDSN(), History: filepath.Join(s.dir, name+".jsonl"),
		Nodes: s.nodeDSNs(), Seed: choice.Uint64(), Workers: s.workers, TTL: s.ttl, Without: s.without, Wrappers: s.wrappers, Apart: int64(apart),
	}
	config.Pressed = choice.IntN(3) == 0
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	line := []string{self}
	if apart != 0 {
		line = append(timeNamespace(apart), self)
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), clientVariable+"="+string(text))
	if config.Pressed {
		cmd.Env = append(cmd.Env, "GOMEMLIMIT=16MiB", "GOGC=10")
	}
	p.errors = filepath.Join(s.dir, name+".stderr")
	stderr, err := os.Create(p.errors)
	if err != nil {
		return err
	}
	defer func() { _ = stderr.Close() }() // the client has its own
	cmd.Stdout, cmd.Stderr = stderr, stderr
	orders, commands, err := os.Pipe() // a pipe of exec would close with the process, and fail the order
	if err != nil {
		return err
	}
	defer func() { _ = orders.Close() }()
	cmd.Stdin, p.orders = orders, commands
	p.process, err = testdb.StartChild(cmd)
	return err
}

// timeNamespace is a command line that runs another in a time namespace, where the
// monotonic clock is ahead by that much and the clock that counts suspended time by half
// of it more.
func timeNamespace(apart time.Duration) []string {
	seconds := int64(apart / time.Second)
	return []string{
		"unshare", "--time", "--monotonic", strconv.FormatInt(seconds, 10), "--boottime", strconv.FormatInt(seconds*3/2, 10),
		"--fork", "--kill-child",
	}
}

// mayMoveClocks tells why clocks can't be set apart here, nil where they can.
func mayMoveClocks() error {
	line := append(timeNamespace(time.Hour), "true")
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// kill ends a life of a client by SIGKILL.
func (s *site) kill(p *process) {
	s.alive(p)
	p.process.Kill()
	_ = p.orders.Close() // nobody listens
}

// alive tells whether a client runs. One that has ended by itself is a violation.
func (s *site) alive(p *process) bool {
	running := p.process.Running()
	if !running {
		s.add(broken, "the client %s has ended by itself: %s", p.name, p.says())
	}
	return running
}

// says is how it has ended, and what it has said.
func (p *process) says() string {
	text, err := os.ReadFile(p.errors)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%v\n%s", p.process.Wait(), clipped(text))
}

// clipped is the beginning of a text.
func clipped(text []byte) []byte {
	const most = 4000
	return text[:min(len(text), most)]
}

// finish tells the clients to stop, and waits until they have.
func (s *site) finish() {
	var ending sync.WaitGroup
	for _, p := range s.clients {
		if p.process == nil {
			continue
		}
		_ = p.orders.Close()
		ending.Go(func() {
			if !within(endLimit, func() { p.process.Wait() }) {
				_ = p.process.Signal(syscall.SIGQUIT) // it tells where it hangs
				if !within(opLimit, func() { p.process.Wait() }) {
					p.process.Kill()
				}
				s.add(stuck, "the client %s does not end: %s", p.name, p.says())
			} else if !p.process.Wait().Success() {
				s.add(broken, "the client %s has failed: %s", p.name, p.says())
			}
		})
	}
	ending.Wait()
}

// endLimit is how long a client may take to end, which has operations under way.
const endLimit = 10 * opLimit

// within tells whether a function returns in time.
func within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}
