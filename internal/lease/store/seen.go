package store

import (
	"math"
	"time"
)

// NoQuestion is Told for a claim whose holder isn't to be told.
const NoQuestion = math.MaxInt64

// Question asks the holder of a row to give it up.
type Question struct {
	Row
	At  int64 // when it was asked, by the server's clock
	Why string
}

// Asked is how many holders were asked, by AskHolders or since the moment by others, and
// how many were not, because their rows were locked. At is the moment by the server's
// clock, for the next call.
type Asked struct {
	At            int64
	Holders, Left int
}

// Blocker is an open transaction that has written a row of a key: it guards the lease, or
// has acquired it.
type Blocker struct {
	Written
	Over time.Duration // for how long the lease has been over; negative while it isn't
}

// Written identifies what a transaction has written to a row.
type Written struct {
	Slot                   int64
	Token, Guards, Session uint64
}

// Info is a row, for people who look.
type Info struct {
	Row
	Owner   string
	Label   string
	Asked   string // why somebody asks the owner to give it up
	AskedAt time.Time
	Token   uint64
	TTL     time.Duration
	Left    time.Duration
	Holders int
	Use     Use
	Since   time.Time // of a waiter
	Session uint64    // of a waiter
}
