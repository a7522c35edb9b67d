package proxies

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"

	"github.com/dca00107/lockstep/tests/faults"
)

// Commands and flags of the protocol, and the first bytes of packets.
const (
	comQuit        = 0x01
	comQuery       = 0x03
	comStmtPrepare = 0x16
	comStmtExecute = 0x17
	comStmtClose   = 0x19
	comStmtReset   = 0x1a
	comReset       = 0x1f

	statusInTrans     = 0x0001
	statusMoreResults = 0x0008

	packetOK  = 0x00
	packetEOF = 0xfe
	packetErr = 0xff
)

// readPacket reads a packet with its header.
func readPacket(r io.Reader) ([]byte, error) {
	packet := make([]byte, 4)
	if _, err := io.ReadFull(r, packet); err != nil {
		return nil, err
	}
	length := int(packet[0]) | int(packet[1])<<8 | int(packet[2])<<16
	packet = append(packet, make([]byte, length)...)
	_, err := io.ReadFull(r, packet[4:])
	if err == nil && length == 0 {
		err = errors.New("an empty packet")
	}
	return packet, err
}

// newCommand makes a packet of a command.
func newCommand(command byte, text string) []byte {
	length := len(text) + 1
	return append([]byte{byte(length), byte(length >> 8), byte(length >> 16), 0, command}, text...)
}

// simplify takes from a server's greeting the two capabilities by which replies look
// otherwise: CLIENT_DEPRECATE_EOF, and MariaDB's extensions.
func simplify(greeting []byte) {
	at := 5 + bytes.IndexByte(greeting[5:], 0) + 1 + 4 + 8 + 1 + 2 + 1 + 2 // of the upper two bytes
	upper := binary.LittleEndian.Uint16(greeting[at:])
	binary.LittleEndian.PutUint16(greeting[at:], upper&^0x0100)
	clear(greeting[at+2+1+6 : at+2+1+10])
}

// logIn forwards what client and server say to each other until the client is let in.
func logIn(front, back net.Conn) error {
	for first := true; ; first = false {
		packet, err := readPacket(back)
		if err != nil {
			return err
		}
		if first {
			simplify(packet)
		}
		if _, err := front.Write(packet); err != nil {
			return err
		}
		switch {
		case !first && packet[4] == packetOK:
			return nil
		case packet[4] == packetErr:
			return errors.New("the server lets nobody in")
		case !first && bytes.Equal(packet[4:], []byte{0x01, 0x03}): // caching_sha2_password knows the password
			continue
		}
		answer, err := readPacket(front)
		if err != nil {
			return err
		}
		if _, err := back.Write(answer); err != nil {
			return err
		}
	}
}

// plain is a connection of the driver whose greeting is simplified.
type plain struct {
	net.Conn
	greeting []byte
	greeted  bool
}

func (p *plain) Read(b []byte) (int, error) {
	if !p.greeted {
		packet, err := readPacket(p.Conn)
		if err != nil {
			return 0, err
		}
		simplify(packet)
		p.greeting, p.greeted = packet, true
	}
	if len(p.greeting) > 0 {
		n := copy(b, p.greeting)
		p.greeting = p.greeting[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// send sends a command and reads the whole reply, with the flags of its last packet, if that
// has any.
func (b *Back) send(command []byte) (reply []byte, flags *uint16, err error) {
	if _, err := b.conn.Write(command); err != nil || command[4] == comStmtClose {
		return nil, nil, err
	}
	r := replies{from: b.conn}
	if command[4] == comStmtPrepare {
		err = r.prepared()
	} else {
		for more := true; more && err == nil; {
			more, err = r.result()
		}
	}
	return r.read, r.flags, err
}

// replies reads a reply packet by packet.
type replies struct {
	from  net.Conn
	read  []byte
	flags *uint16
}

func (r *replies) next() ([]byte, error) {
	packet, err := readPacket(r.from)
	if err != nil {
		return nil, err
	}
	r.read = append(r.read, packet...)
	return packet[4:], nil
}

// result reads one of the results of a statement.
func (r *replies) result() (more bool, err error) {
	packet, err := r.next()
	if err != nil {
		return false, err
	}
	switch packet[0] {
	case packetErr:
		return false, nil
	case packetOK:
		at := 1
		for range 2 { // the number of rows, and the identifier
			at += faults.LengthOf(packet[at])
		}
		return r.noted(packet[at:]), nil
	}
	for eofs := 0; eofs < 2; { // the columns, and the rows
		if packet, err = r.next(); err != nil || packet[0] == packetErr {
			return false, err
		}
		if packet[0] == packetEOF && len(packet) < 9 {
			eofs++
		}
	}
	return r.noted(packet[3:]), nil
}

// noted keeps the flags of a packet, and tells whether another result comes.
func (r *replies) noted(packet []byte) (more bool) {
	flags := binary.LittleEndian.Uint16(packet)
	r.flags = &flags
	return flags&statusMoreResults != 0
}

// prepared reads the reply to COM_STMT_PREPARE.
func (r *replies) prepared() error {
	packet, err := r.next()
	if err != nil || packet[0] == packetErr {
		return err
	}
	eofs := 0
	for _, n := range []uint16{binary.LittleEndian.Uint16(packet[5:]), binary.LittleEndian.Uint16(packet[7:])} {
		if n > 0 {
			eofs++
		}
	}
	for eofs > 0 {
		if packet, err = r.next(); err != nil {
			return err
		}
		if packet[0] == packetEOF && len(packet) < 9 {
			eofs--
		}
	}
	return nil
}
