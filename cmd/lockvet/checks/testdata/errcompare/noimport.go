package errcompare

import "github.com/dca00107/lockstep/txlock"

func unfixed(err error) bool {
	return err == txlock.ErrBusy // want `compare with ErrBusy by errors.Is`
}
