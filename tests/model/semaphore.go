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

// Resize changes the number of permits at once, and waits until those above it, and above
// what another Resize has made it meanwhile, are given back.
func (w *World) Resize(manager, key, n int) *Wait {
	gate := w.Rows[At{Key: key}]
	one := gate != nil && gate.Use < 0
	if one {
		w.makePermits(key, n)
		gate.Use = -n
	}
	return w.wait(&Wait{Manager: manager, try: func() (*Handle, error) {
		if !one {
			return nil, txlock.ErrInvalidKey
		}
		for at, row := range w.Rows {
			if at.Key == key && at.Slot > max(n, -gate.Use) && row.Held(w.Now) {
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
