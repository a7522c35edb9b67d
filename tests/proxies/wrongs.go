package proxies

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"
)

// answers is a Wrong that is a function.
type answers func(s *Session, command []byte) ([]byte, error)

// Answer calls it.
func (a answers) Answer(s *Session, command []byte) ([]byte, error) { return a(s, command) }

// Honest does nothing wrong.
func Honest() Wrong {
	return answers(func(s *Session, command []byte) ([]byte, error) { return s.Send(s.first, command) })
}

// Multiplexes takes the statements of a connection to two sessions in turn, each of which is
// the client's alone.
func Multiplexes() Wrong {
	n := 0
	return answers(func(s *Session, command []byte) ([]byte, error) {
		n++
		if n%2 == 1 {
			return s.Send(s.first, command)
		}
		back, err := s.Other("second", s.stub.server)
		if err != nil {
			return nil, err
		}
		return s.Send(back, command)
	})
}

// Shares takes what a client sends in a transaction after a SELECT to the first session that is in a
// transaction, as one may that gives sessions back after each statement. Its function makes the Wrong of each
// client.
func Shares() func() Wrong {
	var mu sync.Mutex
	var all []*Session
	return func() Wrong {
		selected := false
		return answers(func(s *Session, command []byte) ([]byte, error) {
			mu.Lock() // one at a time, so that sessions can be shared
			defer mu.Unlock()
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
			back := s.first
			if selected && s.InTrans {
				if first := slices.IndexFunc(all, func(other *Session) bool { return other.InTrans }); first >= 0 {
					back = all[first].first
				}
			}
			selected = isRead(s.Text(command))
			return s.Send(back, command)
		})
	}
}

// Splits takes plain reads to another server, those in transactions too or not.
func Splits(replica *mysql.Config, inTransactions bool) func() Wrong {
	return func() Wrong {
		return answers(func(s *Session, command []byte) ([]byte, error) {
			if !isRead(s.Text(command)) || s.InTrans && !inTransactions {
				return s.Send(s.first, command)
			}
			back, err := s.Other("replica", replica)
			if err != nil {
				return nil, err
			}
			return s.Send(back, command)
		})
	}
}

// Caches answers a plain read as the same one was answered before, to whomever.
func Caches() func() Wrong {
	var known sync.Map
	return func() Wrong {
		return answers(func(s *Session, command []byte) ([]byte, error) {
			if command[4] != comQuery || !isRead(s.Text(command)) {
				return s.Send(s.first, command)
			}
			if reply, cached := known.Load(string(command)); cached {
				return reply.([]byte), nil
			}
			reply, err := s.Send(s.first, command)
			if err == nil {
				known.Store(string(command), reply)
			}
			return reply, err
		})
	}
}

// Resets drops the state of the session after each statement, or after each that leaves no
// transaction open.
func Resets(inTransactions bool) func() Wrong {
	return func() Wrong {
		return answers(func(s *Session, command []byte) ([]byte, error) {
			reply, err := s.Send(s.first, command)
			if err != nil || s.Text(command) == "" || command[4] == comStmtPrepare || s.InTrans && !inTransactions {
				return reply, err
			}
			_, _, err = s.first.send(newCommand(comReset, ""))
			for _, known := range s.prepared { // the server has forgotten them
				delete(known.ids, s.first)
			}
			return reply, err
		})
	}
}

// Replays sends the statements of a transaction again, on another session, where it has lost
// the one that they were sent to. One that compares refuses that where a reply is another one.
func Replays(compares bool) func() Wrong {
	return func() Wrong { return &replays{compares: compares} }
}

type replays struct {
	compares bool
	back     *Back // nil for the first
	lost     int
	sent     []exchange // in the transaction
}

type exchange struct{ command, reply []byte }

// Answer sends a command, and all before it where the session is lost.
func (r *replays) Answer(s *Session, command []byte) ([]byte, error) {
	if r.back == nil {
		r.back = s.first
	}
	reply, err := s.Send(r.back, command)
	if err != nil {
		if err = r.again(s); err == nil {
			reply, err = s.Send(r.back, command)
		}
	}
	if err != nil {
		return nil, err
	}
	if r.sent = append(r.sent, exchange{command, reply}); !s.InTrans {
		r.sent = nil
	}
	return reply, nil
}

func (r *replays) again(s *Session) (err error) {
	r.lost++
	if r.back, err = s.Other(fmt.Sprint("again ", r.lost), s.stub.server); err != nil {
		return err
	}
	for _, one := range r.sent {
		reply, err := s.Send(r.back, one.command)
		if err != nil {
			return err
		}
		if r.compares && !bytes.Equal(reply, one.reply) {
			return errors.New("the replay differs")
		}
	}
	return nil
}

var comments = regexp.MustCompile(`(?s)/\*.*?\*/`)

// Strips takes the comments out of statements, and with them their hints.
func Strips() Wrong {
	return answers(func(s *Session, command []byte) ([]byte, error) {
		if command[4] == comQuery || command[4] == comStmtPrepare {
			command = newCommand(command[4], comments.ReplaceAllString(string(command[5:]), ""))
		}
		return s.Send(s.first, command)
	})
}

// Cuts sends the statements of a text one by one, and returns the last reply or the first
// error.
func Cuts() Wrong {
	return answers(func(s *Session, command []byte) (reply []byte, err error) {
		if command[4] != comQuery {
			return s.Send(s.first, command)
		}
		for _, part := range strings.Split(strings.TrimRight(string(command[5:]), "; \n"), ";") {
			reply, err = s.Send(s.first, newCommand(comQuery, part))
			if err != nil || reply[4] == packetErr {
				break
			}
		}
		return reply, err
	})
}

// isRead tells whether a statement is a SELECT that locks nothing.
func isRead(text string) bool {
	text = strings.ToUpper(strings.TrimSpace(text))
	return strings.HasPrefix(text, "SELECT") && !strings.Contains(text, "FOR UPDATE") && !strings.Contains(text, "FOR SHARE") && !strings.Contains(text, "LOCK IN SHARE MODE")
}
