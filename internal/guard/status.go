package guard

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"reflect"
)

// status reads from the server's last reply whether a transaction is open. Each OK and
// EOF packet has the flag SERVER_STATUS_IN_TRANS (MySQL internals, "Status Flags").
// go-sql-driver/mysql keeps the flags of the last packet in a field without a public
// method. If a newer driver moves the field, TestStatusOfDriver fails, and until the code
// here follows, the guard asks the server instead. A public method of the driver would be
// better.
type status struct {
	flags  reflect.Value      // not valid if there is no such field
	nested bool               // the base is a guarded connection, too
	told   bool               // the reply to the BEGIN of the current transaction had the flag
	open   bool               // a transaction was open after the last statement, as far as is known
	doubt  error              // of the last statement: it may have ended the transaction
	chosen bool               // the program may have sent SET TRANSACTION or LOCK TABLES since the last BEGIN
	level  sql.IsolationLevel // that SET TRANSACTION has chosen, or anyLevel
}

// SERVER_STATUS_IN_TRANS and SERVER_STATUS_AUTOCOMMIT.
const (
	inTransactionFlag = 0x0001
	autocommitFlag    = 0x0002
)

// statusOf finds the flags of a connection.
func statusOf(base driver.Conn) status {
	base = unwrapped(base)
	if guarded, ok := base.(*conn); ok {
		return status{flags: guarded.status.flags, nested: true}
	}
	return status{flags: flagsOf(reflect.ValueOf(base))}
}

// unwrapped returns the connection inside wrappers that show what they wrap by a method
// Raw, as those of XSAM/otelsql do.
func unwrapped(base driver.Conn) driver.Conn {
	for {
		wrapper, ok := base.(interface{ Raw() driver.Conn })
		if !ok {
			return base
		}
		base = wrapper.Raw()
	}
}

// ErrRejects is returned instead of a connection whose driver hides that the server is
// read only.
var ErrRejects = errors.New("lockstep: rejectReadOnly=true makes the driver hide txlock.ErrReadOnly as a lost connection, which is retried: leave it out of the data source name; a guarded pool doesn't use the connection to a server again that was read-only")

// rejectsReadOnly reports whether a connection of the driver has the parameter
// rejectReadOnly.
func rejectsReadOnly(base driver.Conn) bool {
	if !flagsOf(reflect.ValueOf(unwrapped(base))).IsValid() {
		return false // not the driver's own
	}
	cfg := reflect.ValueOf(unwrapped(base)).Elem().FieldByName("cfg")
	if cfg.Kind() != reflect.Pointer || cfg.IsNil() || cfg.Elem().Kind() != reflect.Struct {
		return false
	}
	reject := cfg.Elem().FieldByName("RejectReadOnly")
	return reject.IsValid() && reject.Kind() == reflect.Bool && reject.Bool()
}

// flagsOf returns the field with the flags of a connection of the driver.
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

// OpenAtLastReply reports whether a *sql.Tx of a plain pool was open after the last reply
// that wasn't an error. It finds the connection in the *sql.Tx; told is false if it
// can't.
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

// trust is called when a transaction has begun. If the reply has the flag, it is trusted
// from now on; a wrapper may not pass the flags on.
func (s *status) trust() {
	s.told, s.open, s.chosen, s.doubt = s.inReply(), true, false, nil
	s.level = sql.LevelDefault
}

// choose notes what a statement before a transaction has chosen for that, if it is the last: any
// other may be the transaction that was meant.
func (s *status) choose(by statement, outside bool) {
	switch {
	case !outside || by.kind == kindBegin:
	case by.level != sql.LevelDefault:
		s.level = by.level
	case s.level != sql.LevelDefault:
		s.level = anyLevel
	}
}

// autocommit reports whether the last reply that wasn't an error is known to say that
// autocommit is on.
func (s *status) autocommit() bool {
	return s.flags.IsValid() && s.flags.Uint()&autocommitFlag != 0
}

// inReply reports whether the last reply that wasn't an error has the flag.
func (s *status) inReply() bool {
	return s.flags.IsValid() && s.flags.Uint()&inTransactionFlag != 0
}

// inTransaction reports whether a transaction was open after the last reply that wasn't an
// error; told is false if that can't be known.
func (s *status) inTransaction() (open, told bool) {
	if !s.told {
		return false, false
	}
	return s.inReply(), true
}
