package txlock

import (
	"github.com/dca00107/lockstep/internal/bridge"
)

func init() {
	bridge.SetLock(bridge.Lock[*Scope, Key, Grant, PoolOption]{
		Guarded:        guarded,
		Include:        include,
		OnePrimary:     onePrimary,
		Tested:         tested,
		Runs:           runs,
		Last:           last,
		NotUndone:      notUndone,
		Confirm:        confirm,
		Final:          final,
		Commit:         commit,
		Outcome:        ofCommit,
		AfterCommit:    afterCommit,
		CompareAndBump: compareAndBump,
		Asked:          func(key Key) (Key, bool) { return key.unmarked(), key.shared },
		Retried:        retried,
	})
	bridge.SetOnce(bridge.Once[*Scope, Key, OnceOption]{Answer: answerOnce, Result: resultOfOnce, Asked: onceAsked})
}
