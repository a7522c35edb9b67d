package faults

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
)

// Lies are what a liar tells a client wrong about its transaction.
type Lies struct {
	Open       bool // the reply of a statement that has ended it says that it is open
	Savepoints bool // the savepoint of the library is there, whatever has ended it
}

// Dial is how go-sql-driver opens a connection: its Config.DialFunc.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// Liar returns a Dial whose connections tell lies. They speak neither TLS nor
// compression, which it could not read.
func Liar(dial Dial, lies Lies) Dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &liar{Conn: conn, replies: bufio.NewReader(conn), lies: lies}, nil
	}
}

type liar struct {
	net.Conn
	lies    Lies
	replies *bufio.Reader
	open    bool        // the client has begun a transaction, and not ended it by itself
	waiting atomic.Bool // for the first packet of the reply to a statement
	first   []byte      // what is left of that packet
}

// Commands and flags of the protocol.
const (
	comQuery       = 0x03
	comStmtExecute = 0x17
	statusInTrans  = 0x0001
)

// ownSavepoint is the check of the library whether its savepoint is there.
var ownSavepoint = regexp.MustCompile("(?i)^RELEASE SAVEPOINT `?lockstep")

// Write looks at a command, which the driver writes in one piece.
func (l *liar) Write(packet []byte) (int, error) {
	if len(packet) > 4 && packet[3] == 0 {
		command, text := packet[4], string(packet[5:])
		if command == comQuery {
			l.follow(text)
			if l.lies.Savepoints && ownSavepoint.MatchString(text) {
				packet = append([]byte(nil), packet...)
				copy(packet[5:], "DO 1"+strings.Repeat(" ", len(text)))
			}
		}
		l.waiting.Store(l.lies.Open && (command == comQuery || command == comStmtExecute))
	}
	return l.Conn.Write(packet)
}

// follow knows the texts by which the driver and the library begin and end a transaction.
func (l *liar) follow(text string) {
	switch {
	case strings.Contains(text, "START TRANSACTION"), strings.HasPrefix(text, "CALL lockstep_"):
		l.open = true
	case text == "COMMIT", text == "ROLLBACK":
		l.open = false
	}
}

// Read changes the first packet of a reply, where that is an OK packet.
func (l *liar) Read(p []byte) (n int, err error) {
	if len(l.first) == 0 && l.waiting.Load() {
		if l.first, err = readPacket(l.replies); err != nil {
			return 0, err
		}
		l.waiting.Store(false)
		if l.open {
			lie(l.first[4:])
		}
	}
	if len(l.first) > 0 {
		n = copy(p, l.first)
		l.first = l.first[n:]
		return n, nil
	}
	return l.replies.Read(p)
}

// readPacket reads a packet with its header.
func readPacket(r io.Reader) ([]byte, error) {
	header := make([]byte, 4)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	length := int(header[0]) | int(header[1])<<8 | int(header[2])<<16
	packet := make([]byte, len(header)+length)
	copy(packet, header)
	_, err := io.ReadFull(r, packet[4:])
	return packet, err
}

// lie sets the flag of an open transaction in an OK packet: a zero, the number of rows,
// the identifier, the flags.
func lie(payload []byte) {
	if len(payload) < 5 || payload[0] != 0 {
		return
	}
	at := 1
	for range 2 {
		at += LengthOf(payload[at])
		if at+2 > len(payload) {
			return
		}
	}
	flags := binary.LittleEndian.Uint16(payload[at:])
	binary.LittleEndian.PutUint16(payload[at:], flags|statusInTrans)
}

// LengthOf is how many bytes a length-encoded number of the protocol takes that begins with
// this one.
func LengthOf(first byte) int {
	switch first {
	case 0xfc:
		return 3
	case 0xfd:
		return 4
	case 0xfe:
		return 9
	}
	return 1
}
