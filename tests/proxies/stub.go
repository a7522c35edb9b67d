package proxies

import (
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"net"
	"sync"

	"github.com/go-sql-driver/mysql"
)

// Stub is a proxy that authenticates nobody itself: a client logs in at the first session of
// the server. The sessions beside it are opened by the driver, with the same configuration.
type Stub struct {
	Addr string

	ctx      context.Context
	listener net.Listener
	server   *mysql.Config
	wrong    func() Wrong // made for each client
	working  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // true of those to servers
}

// Wrong answers a command of a client.
type Wrong interface {
	Answer(s *Session, command []byte) (reply []byte, err error)
}

// Session is what a client has for one.
type Session struct {
	stub     *Stub
	first    *Back
	others   map[string]*Back // by what the wrong calls them
	prepared map[uint32]*prepared
	InTrans  bool // as the last reply has said
}

// prepared is a statement that clients know by one number, and each session by another.
type prepared struct {
	command []byte // that prepares it
	ids     map[*Back]uint32
}

// NewStub starts one before the server of a configuration of the application.
func NewStub(ctx context.Context, server *mysql.Config, wrong func() Wrong) (*Stub, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Stub{Addr: listener.Addr().String(), ctx: ctx, listener: listener, server: server, wrong: wrong, conns: make(map[net.Conn]bool)}
	p.working.Go(func() {
		for {
			front, err := listener.Accept()
			if err != nil {
				return
			}
			p.working.Go(func() { p.serve(front) })
		}
	})
	return p, nil
}

// Close ends it and all connections.
func (p *Stub) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.working.Wait()
}

// Lose ends all sessions of servers, as one that fails does. Clients see what the stub makes
// of it.
func (p *Stub) Lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn, back := range p.conns {
		if back {
			_ = conn.Close()
		}
	}
}

// keep has Close end a connection, and Lose one to a server.
func (p *Stub) keep(conn net.Conn, back bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[conn] = back
}

// serve answers one client.
func (p *Stub) serve(front net.Conn) {
	p.keep(front, false)
	defer func() { _ = front.Close() }()
	conn, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.server.Addr)
	if err != nil {
		return
	}
	p.keep(conn, true)
	s := &Session{stub: p, first: &Back{conn: conn}, others: make(map[string]*Back), prepared: make(map[uint32]*prepared)}
	defer func() {
		_ = conn.Close()
		for _, back := range s.others {
			_ = back.opened.Close() // it may be broken
		}
	}()
	if err := logIn(front, conn); err != nil {
		return
	}
	wrong := p.wrong()
	for {
		command, err := readPacket(front)
		if err != nil || command[4] == comQuit {
			return
		}
		reply, err := wrong.Answer(s, command)
		if err != nil {
			return // the client's connection breaks
		}
		if _, err := front.Write(reply); err != nil {
			return
		}
	}
}

// Other returns another session of a server, which it opens at the first call.
func (s *Session) Other(name string, server *mysql.Config) (*Back, error) {
	if back := s.others[name]; back != nil {
		return back, nil
	}
	back, err := s.stub.open(server)
	if err == nil {
		s.others[name] = back
	}
	return back, err
}

// open has the driver log in, and takes its connection.
func (p *Stub) open(server *mysql.Config) (*Back, error) {
	back := &Back{}
	cfg := server.Clone()
	cfg.DialFunc = func(ctx context.Context, _, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		p.keep(conn, true)
		back.conn = conn
		return &plain{Conn: conn}, nil
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	back.opened, err = connector.Connect(context.Background())
	return back, err
}

// Send sends a command to a session, by the session's own numbers of prepared statements.
func (s *Session) Send(back *Back, command []byte) (reply []byte, err error) {
	switch command[4] {
	case comStmtPrepare:
		if reply, _, err = back.send(command); err != nil || reply[4] != 0 {
			return reply, err
		}
		number := uint32(len(s.prepared) + 1)
		s.prepared[number] = &prepared{command, map[*Back]uint32{back: binary.LittleEndian.Uint32(reply[5:])}}
		binary.LittleEndian.PutUint32(reply[5:], number)
		return reply, nil
	case comStmtExecute, comStmtClose, comStmtReset:
		known := s.prepared[binary.LittleEndian.Uint32(command[5:])]
		if known == nil {
			return nil, errors.New("no such statement")
		}
		id, there := known.ids[back]
		if !there && command[4] == comStmtExecute {
			if reply, _, err = back.send(known.command); err != nil || reply[4] != 0 {
				return reply, err
			}
			id = binary.LittleEndian.Uint32(reply[5:])
			known.ids[back] = id
		}
		command = append([]byte(nil), command...)
		binary.LittleEndian.PutUint32(command[5:], id)
	}
	reply, flags, err := back.send(command)
	if flags != nil {
		s.InTrans = *flags&statusInTrans != 0
	}
	return reply, err
}

// Text is the statement that a command sends, prepares or executes, or "".
func (s *Session) Text(command []byte) string {
	switch command[4] {
	case comQuery, comStmtPrepare:
		return string(command[5:])
	case comStmtExecute:
		if known := s.prepared[binary.LittleEndian.Uint32(command[5:])]; known != nil {
			return string(known.command[5:])
		}
	}
	return ""
}

// Back is a session of a server.
type Back struct {
	conn   net.Conn
	opened driver.Conn // what holds conn, nil for that of a client
}
