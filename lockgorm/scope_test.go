package lockgorm_test

import (
	"context"
	"reflect"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestEveryVerbOfScope compares the methods of a Scope with the functions that do the same
// with a *gorm.DB: each has one, of the same arguments and results, or a reason.
func TestEveryVerbOfScope(t *testing.T) {
	functions := map[string]any{
		"Lock": lockgorm.Lock, "TryLock": lockgorm.TryLock, "RLock": lockgorm.RLock, "TryRLock": lockgorm.TryRLock,
		"LockAll": lockgorm.LockAll, "RLockAll": lockgorm.RLockAll, "LockAny": lockgorm.LockAny,
		"Version": lockgorm.ReadVersion, "CompareAndBump": lockgorm.CompareAndBump, "Verify": lockgorm.Verify,
		"WaitAtMost": lockgorm.WaitAtMost,
	}
	reasons := map[string]string{
		"Once":       "lockgorm.Once does it under a savepoint, with the function that is called if it is the first",
		"Held":       "on a plain pool each call has a scope of its own, which knows of no other: lockgorm.AssertLocked and AssertRLocked say so, and a Lock of a held key returns its grant",
		"LockWith":   "On does it, for a read",
		"CommitWith": "lockgorm.CommitWith is a clause, which knows what GORM sends behind the write",
		"Guarded":    "txlock.CheckGuarded asks the pool once, and txlock.OnlyGuarded is an option of lockgorm.Join",
	}
	scope, handle := reflect.TypeFor[*txlock.Scope](), reflect.TypeFor[*gorm.DB]()
	for i := range scope.NumMethod() {
		method := scope.Method(i)
		function, ok := functions[method.Name]
		if _, excused := reasons[method.Name]; ok == excused {
			t.Errorf("Scope.%s has neither a function in lockgorm nor a reason, or both", method.Name)
		}
		if !ok {
			continue
		}
		has, want := reflect.TypeOf(function), signature(method.Type, scope, handle)
		if has != want {
			t.Errorf("the function of Scope.%s is a %v, want %v", method.Name, has, want)
		}
		delete(functions, method.Name)
	}
	for name := range functions {
		t.Errorf("a Scope has no method %s", name)
	}
}

// signature is that of a method with a *gorm.DB in place of the scope and the context.
func signature(method, scope, handle reflect.Type) reflect.Type {
	var in, out []reflect.Type
	for i := range method.NumIn() {
		switch arg := method.In(i); arg {
		case scope:
			in = append(in, handle)
		case reflect.TypeFor[context.Context]():
		default:
			in = append(in, arg)
		}
	}
	for i := range method.NumOut() {
		result := method.Out(i)
		if result == scope {
			result = handle
		}
		out = append(out, result)
	}
	return reflect.FuncOf(in, out, method.IsVariadic())
}
