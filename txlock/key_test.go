package txlock

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
)

// status is a number that writes itself otherwise, as enumerations do.
type status int32

func (status) String() string { return "a status" }

// level is the same without a sign.
type level uint16

func (level) String() string { return "a level" }

// country is a string that writes itself otherwise.
type country string

func (c country) String() string { return "country of " + string(c) }

// place is an identifier of two parts.
type place struct{ aisle, shelf int }

func (p place) String() string {
	if p.aisle < 0 {
		return ""
	}
	return strconv.Itoa(p.aisle) + "-" + strconv.Itoa(p.shelf)
}

var id = uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

func TestFamilyWritesKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key  Key
		want string
	}{
		{NewFamily[int]("f").Key(-7), "f:-7"},
		{NewFamily[int8]("f").Key(-128), "f:-128"},
		{NewFamily[int16]("f").Key(-32768), "f:-32768"},
		{NewFamily[int32]("f").Key(2147483647), "f:2147483647"},
		{NewFamily[int64]("f").Key(-9223372036854775808), "f:-9223372036854775808"},
		{NewFamily[uint]("f").Key(7), "f:7"},
		{NewFamily[uint8]("f").Key(255), "f:255"},
		{NewFamily[uint16]("f").Key(65535), "f:65535"},
		{NewFamily[uint32]("f").Key(4294967295), "f:4294967295"},
		{NewFamily[uint64]("f").Key(18446744073709551615), "f:18446744073709551615"},
		{NewFamily[status]("f").Key(3), "f:3"},
		{NewFamily[level]("f").Key(3), "f:3"},
		{NewFamily[string]("f", Exact()).Key("job"), "f:job"},
		{NewFamily[string]("f", Exact()).Key("a:b"), "f:a:b"},
		{NewFamily[string]("f", Exact()).Key(" "), "f: "},
		{NewFamily[string]("f", Exact()).Key("Zürich"), "f:Zürich"},
		{NewFamily[country]("f", Exact()).Key("ch"), "f:ch"},
		{NewFamily[uuid.UUID]("f").Key(id), "f:6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
		{NewStringerFamily[uuid.UUID]("f").Key(id), "f:6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
		{NewStringerFamily[place]("f").Key(place{2, 9}), "f:2-9"},
		{NewStringerFamily[status]("f").Key(3), "f:a status"},
		{NewFamily[string]("f", Exact()).Key(strings.Repeat("k", 253)), "f:" + strings.Repeat("k", 253)},
		{Named("k"), "k"},
		{Named(" job "), " job "},
		{Named("a\x00b"), "a\x00b"},
		{Named(strings.Repeat("k", 255)), strings.Repeat("k", 255)},
		{Named(strings.Repeat("ü", 127)), strings.Repeat("ü", 127)},
	} {
		if c.key.String() != c.want || c.key.Hashed() {
			t.Errorf("the key is %q (hashed: %t), want %q", c.key, c.key.Hashed(), c.want)
		}
		if err := c.key.Validate(); err != nil {
			t.Errorf("%q is refused: %v", c.key, err)
		}
	}
}

func TestInvalidKeys(t *testing.T) {
	t.Parallel()
	var noFamily Family[int64]
	var noID uuid.UUID
	for _, c := range []struct {
		key  Key
		says string
	}{
		{Key{}, "the zero Key"},
		{Named(""), "the name is empty"},
		{Named(strings.Repeat("k", 256)), "256 bytes, 255 are allowed"},
		{Named(strings.Repeat("ü", 128)), "256 bytes, 255 are allowed"},
		{Named("caf\xe9"), "not valid UTF-8"},
		{Named("lockstep:cleanup"), "lockstep's own"},
		{NewFamily[int]("lockstep").Key(1), "lockstep's own"},
		{NewFamily[int]("lockstep", Hashed()).Key(1), "lockstep's own"},
		{Segments(Named("lockstep:x"), 2)[0], "lockstep's own"},
		{Named("\xed\xa0\x80"), "not valid UTF-8"}, // half a surrogate pair
		{NewFamily[int]("f").Key(0), "the zero identifier"},
		{NewFamily[status]("f").Key(0), "the zero identifier"},
		{NewFamily[uint8]("f", Hashed()).Key(0), "the zero identifier"},
		{NewFamily[string]("f", Exact()).Key(""), "the zero identifier"},
		{NewFamily[uuid.UUID]("f").Key(noID), "the zero identifier"},
		{NewStringerFamily[place]("f").Key(place{}), "the zero identifier"},
		{NewStringerFamily[place]("f").Key(place{-1, 0}), "empty text"},
		{NewFamily[string]("f", Exact()).Key(strings.Repeat("k", 254)), "256 bytes, 255 are allowed"},
		{NewFamily[string]("f", Exact()).Key("caf\xe9"), "not valid UTF-8"},
		{NewFamily[string]("", Exact()).Key("a"), "empty or has a colon"},
		{NewFamily[string]("a:b", Exact()).Key("c"), "empty or has a colon"},
		{NewStringerFamily[place](":").Key(place{1, 1}), "empty or has a colon"},
		{NewFamily[int]("a:b").Key(0), "the zero identifier"},
		{noFamily.Key(1), "the zero Family"},
		{noFamily.Key(0), "the zero Family"},
	} {
		err := c.key.Validate()
		if !errors.Is(err, ErrInvalidKey) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("the key %q: %v, want ErrInvalidKey that says %q", c.key, err, c.says)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("the error of a long key is %d bytes long", len(err.Error()))
		}
	}
}

func TestKeysCompare(t *testing.T) {
	t.Parallel()
	orders, lots := NewFamily[int64]("order"), NewFamily[int64]("order", Hashed())
	same := map[Key]int{}
	for _, key := range []Key{orders.Key(42), Named("order:42"), NewFamily[string]("order", Exact()).Key("42"), orders.Keys(41, 42)[1]} {
		same[key]++
	}
	if len(same) != 1 || same[orders.Key(42)] != 4 {
		t.Errorf("keys of one name differ: %v", same)
	}
	if orders.Key(42) == lots.Key(42) || !lots.Key(42).Hashed() {
		t.Error("a named key and a hashed one are the same")
	}
	for _, other := range []Key{Named("Order:42"), Named("order:42 "), Named("order:042"), Named("örder:42")} {
		if other == orders.Key(42) {
			t.Errorf("%q is order:42", other)
		}
	}
	if keys := orders.Keys(); len(keys) != 0 {
		t.Errorf("keys of nothing: %v", keys)
	}
	if keys := orders.Keys(3, 1, 3); len(keys) != 3 || keys[0] != orders.Key(3) || keys[1] != orders.Key(1) || keys[2] != keys[0] {
		t.Errorf("keys %v", keys)
	}
}

// FuzzKey makes keys in all ways of any text.
func FuzzKey(f *testing.F) {
	for _, seed := range []struct {
		family, name string
		id           int64
	}{{"order", "42", 42}, {"", "", 0}, {"a:b", "caf\xe9", -1}, {"f", strings.Repeat("ü", 128), 1}, {"\xff", ":", 7}} {
		f.Add(seed.family, seed.name, seed.id)
	}
	f.Fuzz(func(t *testing.T, family, name string, id int64) {
		if len(name) == 16 {
			_ = NewFamily[uuid.UUID](family).Key(uuid.UUID([]byte(name))).Validate()
		}
		keys := []Key{
			Named(name),
			NewFamily[string](family, Exact()).Key(name), NewFamily[string](family, Hashed(), Exact()).Key(name),
			NewFamily[country](family, Exact()).Key(country(name)),
			NewFamily[int64](family).Key(id), NewFamily[status](family).Key(status(id)), NewFamily[level](family).Key(level(id)),
			NewStringerFamily[place](family).Key(place{int(id), 1}),
		}
		for _, key := range keys {
			err := key.Validate()
			if err != nil {
				if !errors.Is(err, ErrInvalidKey) {
					t.Errorf("%q is refused with %v", key, err)
				}
				continue
			}
			if n := len(key.String()); n < 1 || n > 255 || !utf8.ValidString(key.String()) {
				t.Errorf("the valid key %q has %d bytes", key, n)
			}
			if key.Hashed() != key.record().hashed || !key.Hashed() && key.record().name != key.String() {
				t.Errorf("the key %q locks %+v", key, key.record())
			}
		}
		if keys[1].String() != keys[3].String() {
			t.Errorf("the string %q and its named type make %q and %q", name, keys[1], keys[3])
		}
	})
}
