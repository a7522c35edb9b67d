package model

import "github.com/dca00107/lockstep/txlock"

// A semaphore of n permits is the rows 1 to n of its key, and n is the use of the key:
// a permit is one of these rows that is not held, and is not entered again.

// TryPermit takes the first permit that is free.
func (w *World) TryPermit(manager, key, n int, owner string, ttl int64) (*Handle, error) {
	if gate := w.Rows[At{Key: key}]; gate == nil || gate.Use == 0 {
		w.makePermits(key, n)
	}
	gate, err := w.use(key, -n)
	switch {
	case err != nil:
		return nil, err
	case gate.Use != -n:
		return nil, txlock.ErrInvalidOption
	}
	for slot := 1; slot <= n; slot++ {
		at := At{key, slot}
		row := w.Rows[at]
		if row.Held(w.Now) || w.Locked(at) {
			continue
		}
		hold := w.next()
		owner = named(owner, hold)
		row.acquire(w.Now, owner, hold, ttl)
		return w.keep(place{manager: manager, key: key, owner: owner, slot: slot}, at, row.Token, hold, ttl, false), nil
	}
	return nil, txlock.ErrBusy
}

// AcquirePermit is TryPermit that waits.
func (w *World) AcquirePermit(manager, key, n int, owner string, ttl int64) *Wait {
	return w.wait(&Wait{Manager: manager, try: func() (*Handle, error) {
		return w.TryPermit(manager, key, n, owner, ttl)
	}})
}

// Resize changes the number of permits at once, and waits until those above it are
// given back.
func (w *World) Resize(manager, key, n int) *Wait {
	gate, before := w.Rows[At{Key: key}], 0
	if gate != nil && gate.Use < 0 {
		w.makePermits(key, n)
		before, gate.Use = -gate.Use, -n
	}
	return w.wait(&Wait{Manager: manager, try: func() (*Handle, error) {
		if before == 0 {
			return nil, txlock.ErrInvalidKey
		}
		for slot := n + 1; slot <= before; slot++ {
			if w.Rows[At{key, slot}].Held(w.Now) {
				return nil, txlock.ErrBusy
			}
		}
		return nil, nil
	}})
}

func (w *World) makePermits(key, n int) {
	for slot := 1; slot <= n; slot++ {
		if at := (At{key, slot}); w.Rows[at] == nil {
			w.Rows[at] = fresh()
		}
	}
}
