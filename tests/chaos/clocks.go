package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// leap is a time in which the server's clock was set or was not as fast as that which the
// clients share, and by how much it may have gone forward and back against that.
type leap struct {
	from, to      int64
	forward, back time.Duration
}

// faketime is a clock of a server that can be set and made slow or fast, by libfaketime,
// which reads a file for it. The clock of the clients stays, and so does the monotonic one
// of the server, by which it waits.
type faketime struct {
	file   string
	offset time.Duration // of a clock that is as fast as others
	leaps  []leap
}

// newFaketime makes the clock of a server, and the option of Start for it.
func newFaketime(ctx context.Context, dir, name string) (*faketime, testdb.Option, error) {
	library, err := testdb.Libfaketime(ctx)
	if err != nil {
		return nil, nil, err
	}
	c := &faketime{file: filepath.Join(dir, name+".time")}
	return c, testdb.Env(
		"LD_PRELOAD="+library, "FAKETIME_TIMESTAMP_FILE="+c.file,
		"FAKETIME_NO_CACHE=1", // what is written is seen at once
		"NO_FAKE_STAT=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
		"FAKETIME_FORCE_MONOTONIC_FIX=0", // MySQL's condition variables spin otherwise
	), c.write(1, 0)
}

// write tells libfaketime: the time is that of the machine and the offset, and from the start
// of the server, which was so long ago, it has run at that rate.
func (c *faketime) write(rate float64, age time.Duration) error {
	offset := c.offset - time.Duration((rate-1)*float64(age))
	text := fmt.Sprintf("%+.6f x%.6f", offset.Seconds(), rate) // a rate that is left out stays
	// It must not be seen half-written.
	if err := os.WriteFile(c.file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(c.file+".new", c.file)
}

// ahead is by how much the server's clock is ahead of this machine's, by the quickest of some
// answers: of a slow one nobody knows when the clock was read.
func (s *site) ahead(ctx context.Context) (d time.Duration, err error) {
	const tries, quick = 10, 20 * time.Millisecond
	best := time.Duration(math.MaxInt64)
	for i := 0; i < tries && best > quick; i++ {
		var micros int64
		before := time.Now()
		if err := s.admin.QueryRowContext(ctx, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)").Scan(&micros); err != nil {
			return 0, err
		}
		if took := time.Since(before); took < best {
			best, d = took, time.UnixMicro(micros).Sub(before.Add(took/2))
		}
	}
	return d, nil
}

// showing waits until the server's clock is ahead by that much.
func (s *site) showing(ctx context.Context) error {
	const near = 100 * time.Millisecond
	for {
		ahead, err := s.ahead(ctx)
		if err == nil && (ahead-s.clock.offset).Abs() < near {
			return nil
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the clock of the server is %v ahead, and is to be %v: %w", ahead, s.clock.offset, errors.Join(err, ctx.Err()))
		}
	}
}

// setClock sets the clock to another offset.
func (s *site) setClock(by time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	s.serving.Lock()
	defer s.serving.Unlock()
	l := leap{from: clock{}.now(), to: math.MaxInt64, forward: max(by, 0), back: max(-by, 0)}
	s.clock.offset += by
	err := s.clock.write(1, 0)
	if err == nil {
		err = s.showing(ctx)
	}
	l.to = clock{}.now()
	s.clock.leaps = append(s.clock.leaps, l)
	return err
}

// stepForward sets the server's clock forward, by a part of a time to live or up to an hour.
// It stays: what was granted by a clock that is ahead lasts until another has come so far.
func (s *site) stepForward(_ context.Context, f fault) error { return s.setClock(s.step(f)) }

// stepBack sets it back for a while, and now and then for good.
func (s *site) stepBack(ctx context.Context, f fault) error {
	by := s.step(f)
	if f.choice>>1%3 == 0 && f.lasts < 10*s.ttl {
		return s.setClock(-min(by, 2*s.ttl))
	}
	if err := s.setClock(-by); err != nil {
		return err
	}
	f.lasting(ctx)
	return s.setClock(by)
}

// step is how far a clock is set: by all orders of magnitude.
func (s *site) step(f fault) time.Duration {
	least, most := float64(s.ttl)/10, float64(time.Hour)
	return time.Duration(least * math.Pow(most/least, float64(f.choice>>32)/float64(1<<32)))
}

// setRate makes the server's clock slow or fast for a while.
func (s *site) setRate(ctx context.Context, f fault) error {
	limited, cancel := context.WithTimeout(context.Background(), faultLimit)
	defer cancel()
	started, err := s.started(limited)
	if err != nil {
		return err
	}
	rate := 1.2 + 2*float64(f.choice>>32)/float64(1<<32)
	if f.choice%2 == 0 {
		rate = 1 / rate
	}
	from, begun := clock{}.now(), time.Now()
	if err := s.clock.write(rate, begun.Sub(started)); err != nil {
		return err
	}
	jumped, err := s.ahead(limited) // a little
	if err != nil {
		return err
	}
	f.lasting(ctx)
	ahead, err := s.ahead(limited)
	if err != nil {
		return err
	}
	if moved := ahead - jumped; moved > 0 != (rate > 1) && moved.Abs() > s.ttl/5 { // else the machine is too busy to tell
		return fmt.Errorf("at the rate %.3f the clock has moved by %v in %v", rate, moved, time.Since(begun))
	}
	by := (jumped - s.clock.offset).Abs() + (ahead - jumped).Abs()
	s.clock.offset = ahead
	err = errors.Join(s.clock.write(1, 0), s.showing(limited))
	s.clock.leaps = append(s.clock.leaps, leap{from: from, to: clock{}.now(), forward: by, back: by})
	return err
}

// started is when the process of the server was started, from which on libfaketime counts.
func (s *site) started(ctx context.Context) (time.Time, error) {
	var path string
	if err := s.admin.QueryRowContext(ctx, "SELECT @@pid_file").Scan(&path); err != nil {
		return time.Time{}, err
	}
	pid, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
	if err != nil {
		return time.Time{}, err
	}
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	const ticks = 100 // a second, on all that Go runs on
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	begun, err := strconv.ParseFloat(fields[19], 64) // the 22nd of all
	if err != nil {
		return time.Time{}, err
	}
	up, err := strconv.ParseFloat(strings.Fields(string(uptime))[0], 64)
	return time.Now().Add(-time.Duration((up - begun/ticks) * float64(time.Second))), err
}

// The judge. What is promised of the server's clock: a lease whose clock is set forward ends
// that much earlier than its holder thinks, so two may believe in it until then, and Guard
// alone protects; one that is set back lets no writer wait for longer than a time to live,
// but whoever waits for readers, for permits and for what is kept.

// certain is the moment until which a holder that was granted a lease believes in it rightly:
// until the first moment at which the clock was set forward.
func certain(leaps []leap, call, grant, valid int64) int64 {
	for _, l := range leaps {
		if l.forward > 0 && l.from < valid && l.to > call {
			valid = max(min(valid, l.from), grant)
		}
	}
	return valid
}

// leapt tells whether the clock was set at a moment in between.
func leapt(leaps []leap, from, to int64) bool {
	return slices.ContainsFunc(leaps, func(l leap) bool { return l.from < to && l.to > from })
}

// writersAlone tells whether a key that the rows are read of is neither shared nor kept.
func writersAlone(key string) bool {
	return strings.HasPrefix(key, ofAll) || slices.Contains(askedLeases, key) && key != askedReaders
}

// refusals returns who was refused, by keys. Of several keys only one was asked for.
func refusals(history []*op) map[string][]*op {
	refused := make(map[string][]*op)
	for _, o := range history {
		if !acquires(o) || o.Outcome != failed {
			continue
		}
		for _, key := range o.Keys {
			if strings.Contains(o.Err, strconv.Quote(key)) {
				refused[key] = append(refused[key], o)
			}
		}
	}
	return refused
}

// checkDead checks that a writer who has died doesn't keep others waiting, whatever becomes
// of the server's clock: the row doesn't show him a time to live after another was refused,
// who has come when that of his lease was over.
func (v *verdict) checkDead(history []*op, ends map[string]*op, seen []sight, ttl time.Duration) {
	last, owners, refused := make(map[string]int64), make(map[string]*op), refusals(history)
	for _, o := range history {
		if o.Owner != "" {
			owners[o.Owner] = o
		}
		last[o.ID] = max(last[o.ID], o.Return, o.Valid)
		if o.Kind == "part" {
			last[o.Of] = max(last[o.Of], o.Valid)
		}
	}
	told := make(map[string]bool)
	for _, s := range seen {
		o := owners[s.owner]
		if !s.held || o == nil || told[o.ID] || ends[o.ID] != nil || o.Outcome != succeeded || !writersAlone(s.key) {
			continue
		}
		over := last[o.ID] + int64(opLimit+2*ttl)
		told[o.ID] = slices.ContainsFunc(refused[s.key], func(next *op) bool {
			return next.Call > over && next.Return+int64(2*ttl) < s.from && strings.Contains(next.Err, txlock.ErrBusy.Error())
		})
		if told[o.ID] {
			v.add(stuck, "%s: %s still has it %v after it has believed in it last, and others have come", s.key, o.ID, time.Duration(s.from-last[o.ID]))
		}
	}
}

// behind is by how much the clock was set back at moments in between.
func behind(leaps []leap, from, to int64) (d time.Duration) {
	for _, l := range leaps {
		if l.from < to && l.to > from {
			d += l.back
		}
	}
	return d
}
