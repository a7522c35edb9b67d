package guard

import (
	"database/sql"
	"database/sql/driver"
	"reflect"
)

// status reads whether a transaction is open out of the last reply of the server. Each OK
// and EOF packet carries the flag SERVER_STATUS_IN_TRANS (MySQL internals, "Status
// Flags"); go-sql-driver/mysql keeps the flags of the last one in a field that it has no
// method for. A newer driver may have the field elsewhere: TestStatusOfDriver says so,
// and until it is found there again the guard asks the server instead. The end is a public
// method of the driver.
type status struct {
	flags reflect.Value // not valid where there is no such field
	told  bool          // the reply to the BEGIN of the current transaction has had it
	open  bool          // one was open after the last statement, as far as is known
}

// inTransactionFlag is SERVER_STATUS_IN_TRANS.
const inTransactionFlag = 0x0001

// statusOf finds the flags in a connection, also under wrappers that show what they wrap
// by a method Raw, as XSAM/otelsql's do.
func statusOf(base driver.Conn) status {
	for {
		if guarded, ok := base.(*conn); ok {
			return status{flags: guarded.status.flags}
		}
		wrapper, ok := base.(interface{ Raw() driver.Conn })
		if !ok {
			break
		}
		base = wrapper.Raw()
	}
	return status{flags: flagsOf(reflect.ValueOf(base))}
}

// flagsOf returns the field of the flags in a connection of the driver.
func flagsOf(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct || v.Elem().Type().PkgPath() != "github.com/go-sql-driver/mysql" {
		return reflect.Value{}
	}
	flags := v.Elem().FieldByName("status")
	if !flags.IsValid() || !flags.CanUint() {
		return reflect.Value{}
	}
	return flags
}

// OpenAtLastReply tells of a transaction of a plain pool whether it was open after the last
// reply but an error. It finds the connection in a *sql.Tx; told is false where it can't.
func OpenAtLastReply(tx any) (open, told bool) {
	transaction, ok := tx.(*sql.Tx)
	if !ok || transaction == nil {
		return false, false
	}
	v := reflect.ValueOf(transaction).Elem()
	for _, name := range []string{"dc", "ci"} {
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return false, false
		}
		if v = v.FieldByName(name); !v.IsValid() {
			return false, false
		}
	}
	if v.Kind() != reflect.Interface || v.IsNil() {
		return false, false
	}
	flags := flagsOf(v.Elem())
	return flags.IsValid() && flags.Uint()&inTransactionFlag != 0, flags.IsValid()
}

// trust is called when a transaction has begun, which the reply must have said. What
// stands between may not hand the flags on.
func (s *status) trust() {
	s.told, s.open = s.flags.IsValid() && s.flags.Uint()&inTransactionFlag != 0, true
}

// inTransaction tells whether a transaction was open after the last reply but an error;
// told is false where that can't be known.
func (s *status) inTransaction() (open, told bool) {
	if !s.told {
		return false, false
	}
	return s.flags.Uint()&inTransactionFlag != 0, true
}
