package proxy

import "encoding/binary"

// Protocol tells what a connection speaks, so that its commands can be counted.
type Protocol int

// The protocols. Anything counts round trips only.
const (
	Anything Protocol = iota
	MySQL
	Redis
)

// meter counts in one direction of a connection. It is given the bytes as they come.
type meter interface {
	// count returns how many commands, or from the server how many refusals for a
	// deadlock, have begun in the bytes.
	count(p []byte) int64
}

func (p Protocol) fromClient() meter {
	switch p {
	case MySQL:
		return &packets{wanted: isCommand}
	case Redis:
		return &requests{}
	default:
		return nothing{}
	}
}

func (p Protocol) fromServer() meter {
	if p == MySQL {
		return &packets{wanted: isDeadlock}
	}
	return nothing{}
}

type nothing struct{}

func (nothing) count([]byte) int64 { return 0 }

// packets counts packets of the MySQL protocol: three bytes of length, a number of
// sequence, and a body. Connections with TLS or compression can't be read.
type packets struct {
	wanted func(sequence byte, body []byte) bool
	head   []byte // the header and the first bytes of the body, as far as they have come
	left   int    // how much of the body comes still
}

// peeked is how much of a body decides.
const peeked = 3

func (c *packets) count(p []byte) (n int64) {
	for len(p) > 0 {
		if missing := c.missing(); missing > 0 {
			taken := min(missing, len(p))
			c.head, p = append(c.head, p[:taken]...), p[taken:]
			if c.missing() > 0 {
				continue
			}
			length := c.length()
			if c.wanted(c.head[3], c.head[4:]) {
				n++
			}
			c.left = length - (len(c.head) - 4)
		}
		skipped := min(c.left, len(p))
		c.left -= skipped
		p = p[skipped:]
		if c.left == 0 {
			c.head = c.head[:0]
		}
	}
	return n
}

// missing is how many bytes the head lacks.
func (c *packets) missing() int {
	if len(c.head) < 4 {
		return 4 - len(c.head)
	}
	return 4 + min(c.length(), peeked) - len(c.head)
}

func (c *packets) length() int { return int(c.head[0]) | int(c.head[1])<<8 | int(c.head[2])<<16 }

// Commands that no answer follows.
const (
	comQuit      = 0x01
	comStmtClose = 0x19
)

// isCommand tells whether a client's packet is a command that is answered.
func isCommand(sequence byte, body []byte) bool {
	return sequence == 0 && len(body) > 0 && body[0] != comQuit && body[0] != comStmtClose
}

// The errors of a server that has found a deadlock: of rows, and of GET_LOCK.
const (
	errDeadlock         = 1213
	errUserLockDeadlock = 3058
)

// isDeadlock tells whether a server's packet is the error of a deadlock.
func isDeadlock(_ byte, body []byte) bool {
	if len(body) < peeked || body[0] != 0xff {
		return false
	}
	number := binary.LittleEndian.Uint16(body[1:])
	return number == errDeadlock || number == errUserLockDeadlock
}

// requests counts those of a Redis client: arrays of strings, "*2\r\n$3\r\nGET\r\n...".
type requests struct {
	line    []byte
	strings int // of the request, which come still
	skip    int // bytes of a string, which come still
}

func (c *requests) count(p []byte) (n int64) {
	for len(p) > 0 {
		if c.skip > 0 {
			skipped := min(c.skip, len(p))
			c.skip -= skipped
			p = p[skipped:]
			continue
		}
		b := p[0]
		p = p[1:]
		if b != '\n' {
			c.line = append(c.line, b)
			continue
		}
		n += c.endLine()
		c.line = c.line[:0]
	}
	return n
}

// endLine reads a line, and returns 1 where a request begins with it.
func (c *requests) endLine() int64 {
	if len(c.line) < 2 {
		return 0
	}
	number := 0
	for _, digit := range c.line[1:] {
		if digit >= '0' && digit <= '9' {
			number = number*10 + int(digit-'0')
		}
	}
	switch {
	case c.line[0] == '*' && c.strings == 0:
		c.strings = number
		return 1
	case c.line[0] == '$':
		c.strings--
		c.skip = number + 2
	}
	return 0
}
