package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// outcome is what became of an operation.
type outcome string

const (
	succeeded outcome = "ok"
	failed    outcome = "failed"  // it has changed nothing
	unknown   outcome = "unknown" // it may have
)

// op is one operation of a client. Moments are nanoseconds of the monotonic clock that
// all processes of a machine share.
type op struct {
	ID      string   `json:"id"`
	Kind    string   `json:"kind,omitempty"`
	Keys    []string `json:"keys,omitempty"`
	Call    int64    `json:"call,omitempty"`
	Return  int64    `json:"return,omitempty"` // 0: it has not returned
	Outcome outcome  `json:"outcome,omitempty"`
	Err     string   `json:"err,omitempty"`

	// Of a transaction.
	Tries int      `json:"tries,omitempty"` // how often it was begun
	Wrote []string `json:"wrote,omitempty"` // the records that the last try has written
	Value int64    `json:"value,omitempty"` // what it has read, of one that only reads
	Form  []string `json:"form,omitempty"`  // the texts of a careless statement
	Ended bool     `json:"ended,omitempty"` // that has ended the transaction of the last try

	Answer string `json:"answer,omitempty"` // of Once

	// Of a lease.
	Token uint64 `json:"token,omitempty"`
	Valid int64  `json:"valid,omitempty"` // the last moment that its holder was told it was
	Of    string `json:"of,omitempty"`    // the hold that a renewal or the like is of

	Owner    string `json:"owner,omitempty"`    // its name in the row
	AtLeast  int64  `json:"atleast,omitempty"`  // for how long it is held at least, in nanoseconds
	Told     int64  `json:"told,omitempty"`     // when it was told that somebody asks for it
	Question string `json:"question,omitempty"` // and the operation that has asked
}

// clock reads the shared clock, in a process whose own is set apart.
type clock struct{ apart int64 }

func (c clock) now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // it can't fail for this clock
	}
	return t.Nano() - c.apart
}

// journal is the file that a client appends its operations to: a line when one is
// called, and others with what is known later. What was written stays when the process
// is killed.
type journal struct{ file *os.File }

func openJournal(path string) (journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return journal{f}, err
}

func (j journal) write(o op) {
	line, err := json.Marshal(o)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("the history can't be written: %v", err))
	}
}

// readHistory reads the journals in a directory that match a pattern. A last line that
// was not written to its end is left out.
func readHistory(pattern string) ([]*op, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var all []*op
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		ops, err := readJournal(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, ops...)
	}
	slices.SortFunc(all, func(a, b *op) int { return int(a.Call - b.Call) })
	return all, nil
}

func readJournal(r io.Reader) (ops []*op, err error) {
	byID := make(map[string]*op)
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return ops, nil
		}
		if err != nil {
			return nil, err
		}
		var head struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(line, &head); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		o := byID[head.ID]
		if o == nil {
			o = new(op)
			byID[head.ID] = o
			ops = append(ops, o)
		}
		if err := json.Unmarshal(line, o); err != nil { // adds what is known now
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
}
