package lockhttp

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	every    = time.Second      // between two looks
	patience = 10 * time.Second // for one
)

var errClosed = errors.New("lockhttp: the handler is closed")

// sampler looks at the server for all viewers together, while there are any: each that
// wants to see something newer asks for it, and the next look is for all of them.
type sampler struct {
	take func(ctx context.Context, d demand) *snapshot
	wake chan struct{}
	ctx  context.Context
	end  context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	wanted  demand
	latest  *snapshot
	changed chan struct{} // closed by the next snapshot
}

// demand is what viewers want to see beside the picture.
type demand struct {
	jobs bool
	keys map[string]bool // whose pages are viewed
}

func (d *demand) add(more demand) {
	d.jobs = d.jobs || more.jobs
	for key := range more.keys {
		if d.keys == nil {
			d.keys = make(map[string]bool)
		}
		d.keys[key] = true
	}
}

func (d *demand) has(all demand) bool {
	for key := range all.keys {
		if !d.keys[key] {
			return false
		}
	}
	return d.jobs || !all.jobs
}

func newSampler(take func(ctx context.Context, d demand) *snapshot) *sampler {
	s := &sampler{take: take, wake: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{})}
	s.ctx, s.end = context.WithCancel(context.Background())
	go s.run()
	return s
}

func (s *sampler) close() {
	s.end()
	<-s.done
}

func (s *sampler) run() {
	defer close(s.done)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		}
		s.look()
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

func (s *sampler) look() {
	s.mu.Lock()
	wanted, last := s.wanted, s.latest
	s.wanted = demand{}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	next := s.take(ctx, wanted)
	next.asked, next.ended, next.number, next.seen = wanted, time.Now(), 1, time.Now()
	if last != nil {
		next.number = last.number + 1
		if next.err != nil { // what was seen last is shown with the error
			next.content, next.seen = last.content, last.seen
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = next
	close(s.changed)
	s.changed = make(chan struct{})
}

// next returns a snapshot that has what is demanded: one with a number above after, and
// of this second. It returns the error of the context, or errClosed.
func (s *sampler) next(ctx context.Context, after int, d demand) (*snapshot, error) {
	for waited := false; ; waited = true {
		if s.ctx.Err() != nil {
			return nil, errClosed
		}
		s.mu.Lock()
		latest, changed := s.latest, s.changed
		if latest != nil && latest.number > after && latest.asked.has(d) && (waited || time.Since(latest.ended) < every) {
			s.mu.Unlock()
			return latest, nil
		}
		s.wanted.add(d)
		s.mu.Unlock()
		select {
		case s.wake <- struct{}{}:
		default: // somebody else has asked
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.ctx.Done():
			return nil, errClosed
		}
	}
}

// last returns the last snapshot, or nil.
func (s *sampler) last() *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}
