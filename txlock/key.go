package txlock

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/fault"
)

// maxKey is the length of a key in bytes, that of its column.
const maxKey = 255

// reserved begins the names of lockstep's own rows.
const reserved = "lockstep:"

// slots is the number of center locks.
const slots = 1 << 16

// A Key names what is locked. Keys are compared byte by byte: "Job" and "job " are different keys.
// The zero Key is invalid. Keys may be compared with ==.
type Key struct {
	name   string
	hashed bool
	bad    string // why the key is invalid, to be said where it is used
	shared bool   // Shared has marked it
}

// Named returns the key of the given name, with a row of its own. A name has 1 to 255 bytes of
// valid UTF-8 and doesn't begin with "lockstep:" or with "@", the mark of a Namespace; any other
// makes a key that every call refuses with ErrInvalidKey. For records, prefer a Family.
func Named(name string) Key {
	k := newKey(name, false)
	k.bad = cmp.Or(k.bad, marked(name))
	return k
}

func newKey(name string, hashed bool) Key {
	k := Key{name: name, hashed: hashed}
	switch {
	case name == "":
		k.bad = "the name is empty"
	case strings.HasPrefix(name, reserved):
		k.bad = "names that begin with " + reserved + " are lockstep's own"
	case len(name) > maxKey:
		k.bad = fmt.Sprintf("the name has %d bytes, %d are allowed", len(name), maxKey)
	case !utf8.ValidString(name):
		k.bad = "the name is not valid UTF-8"
	}
	return k
}

// String returns the name of the key, "order:42".
func (k Key) String() string { return k.name }

// Hashed reports whether the key is one of a hashed family.
func (k Key) Hashed() bool { return k.hashed }

// Slot returns the number of the center lock of a hashed key: the CRC-32 of its name, as the
// server's CRC32() computes it, modulo 65,536.
func (k Key) Slot() uint16 { return uint16(crc32.ChecksumIEEE([]byte(k.name)) % slots) }

// Validate returns ErrInvalidKey with the reason if the key can't be locked. Every call validates
// its keys before it sends anything.
func (k Key) Validate() error {
	switch {
	case k.bad != "":
		return fmt.Errorf("%w: %q: %s", ErrInvalidKey, fault.Clipped(k.name), k.bad)
	case k.name == "":
		return fmt.Errorf("%w: the zero Key: make keys with Named or a Family", ErrInvalidKey)
	case k.shared:
		return fmt.Errorf("%w: %q: Shared has marked it, which is for calls that take several keys: give the key itself", ErrInvalidKey, fault.Clipped(k.name))
	}
	return nil
}

// Shared marks a key to be locked shared by a call that locks several: Scope.LockAll, and calls
// that use it, such as locksqlc.Run, lockgorm.Transaction and lockgorm.On. So one call locks some
// keys exclusively and others shared:
//
//	scope.LockAll(ctx, Orders.Key(42), txlock.Shared(Prices.Key(7)))
//
// Other calls refuse a marked key with ErrInvalidKey: RLock needs no mark. A marked key is not
// equal to the key.
func Shared(key Key) Key {
	key.shared = true
	return key
}

// unmarked returns the key without the mark of Shared.
func (k Key) unmarked() Key {
	k.shared = false
	return k
}

// unmarked returns the keys without the mark of Shared.
func unmarked(keys []Key) []Key {
	all := make([]Key, len(keys)) // slices.Clone would keep the caller's
	for i, key := range keys {
		all[i] = key.unmarked()
	}
	return all
}

// An ID identifies a record: an integer, a string or a UUID.
type ID interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 |
		~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 |
		~string | uuid.UUID
}

// A Family makes the keys of one kind of record: Orders.Key(42) is "order:42". Make it a
// package-level variable, so that every program locks the same record with the same key.
type Family[I comparable] struct {
	name   string
	hashed bool
	format func(I) string
	fold   func(text string) (folded, bad string)
	bad    string

	collation string // by which fold folds, or ""
	stringer  bool
}

// A FamilyOption configures NewFamily.
type FamilyOption func(*familyOptions)

type familyOptions struct {
	hashed    bool
	namespace *Namespace
	folds     bool
	collation string // of Fold
	twice     bool   // Fold was given twice
	exact     bool
}

// Hashed puts the keys of the family on the 65,536 center locks, so that they need no rows of
// their own: for sets that grow without bound. Two keys on the same slot, 1 in 65,536 for a pair,
// exclude each other: a transaction may get ErrBusy, ErrUpgrade or ErrStaleSnapshot for a key that
// no other transaction has locked. The default is one row for each key, kept for good: for bounded
// sets.
func Hashed() FamilyOption { return func(o *familyOptions) { o.hashed = true } }

// NewFamily returns the family of the given name, for integers, strings and UUIDs. The name has no
// colon and doesn't begin with "@". Use one name for one family, always hashed or never: a named
// key and a hashed one don't exclude each other.
//
// A family of strings needs Fold or Exact, which determine when two strings are one record: a
// column may consider "Bob" and "bob" the same row, which would have two keys. Without either of
// them each of its keys is refused with ErrInvalidKey.
func NewFamily[I ID](name string, options ...FamilyOption) Family[I] {
	return newFamily[I](name, func(id I) string { return format(any(id)) }, false, options)
}

// NewStringerFamily is NewFamily for other comparable identifiers with a String method. An
// identifier whose String is empty is refused like a zero identifier. Identifiers that contain
// more than integers, such as a string or a pointer, need Exact: all identifiers of one record
// must have the same String.
func NewStringerFamily[I interface {
	comparable
	fmt.Stringer
}](name string, options ...FamilyOption) Family[I] {
	return newFamily[I](name, func(id I) string { return id.String() }, true, options)
}

// newFamily makes a family.
func newFamily[I comparable](name string, format func(I) string, stringer bool, options []FamilyOption) Family[I] {
	var o familyOptions
	for _, option := range options {
		option(&o)
	}
	f := Family[I]{
		name: name, hashed: o.hashed, format: format, fold: o.fold(reflect.TypeFor[I](), stringer), bad: marked(name),
		collation: o.collation, stringer: stringer,
	}
	if name == "" || strings.Contains(name, ":") {
		f.bad = fmt.Sprintf("the family name %q is empty or has a colon", name)
	}
	if o.namespace != nil {
		f.name = o.namespace.prefix() + name
		f.bad = cmp.Or(o.namespace.bad(), f.bad)
	}
	return f
}

// Key returns the key of one record. The zero identifier, that of a record that is not saved yet,
// makes a key that every call refuses with ErrInvalidKey.
func (f Family[I]) Key(id I) Key {
	var zero I
	if f.format == nil {
		return Key{bad: "the zero Family: make families by NewFamily"}
	}
	if id == zero {
		return Key{name: f.name + ":", bad: "the zero identifier: the record has none yet"}
	}
	text, bad := f.fold(f.format(id))
	if text == "" {
		return Key{name: f.name + ":", bad: "the identifier writes an empty text"}
	}
	k := newKey(f.name+":"+text, f.hashed)
	k.bad = cmp.Or(f.bad, k.bad, bad)
	return k
}

// Keys returns the keys of several records, for LockAll.
func (f Family[I]) Keys(ids ...I) []Key {
	keys := make([]Key, len(ids))
	for i, id := range ids {
		keys[i] = f.Key(id)
	}
	return keys
}

// format writes an identifier: integers in decimal, UUIDs in their usual form,
// types made of these as what they are made of.
func format(id any) string {
	switch v := id.(type) {
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case string:
		return v
	case uuid.UUID:
		return v.String()
	}
	return formatKind(id)
}

// formatKind is format for the other integers and for named types, whose own
// String method, if any, must not change the key.
func formatKind(id any) string {
	v := reflect.ValueOf(id)
	switch {
	case v.CanInt():
		return strconv.FormatInt(v.Int(), 10)
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10)
	}
	return v.String()
}
