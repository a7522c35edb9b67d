package txlock

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Keys of a namespace are "@shop/order:42". No other name begins with the mark, and no
// namespace has a slash, so that each name is of one namespace, or of none.
const (
	namespaceMark = "@"
	namespaceEnd  = "/"
	maxNamespace  = 64
)

// A Namespace is the name of one application among several that share a schema. Its keys differ
// from those of other namespaces, and from those without one: for locks, leases, semaphores, Once,
// jobs and quorums.
//
//	const shop = txlock.Namespace("shop")
//
//	var Orders = txlock.NewFamily[int64]("order", txlock.In(shop))
//	var Nightly = shop.Named("nightly-report")
//
// The name of a namespace has 1 to 64 bytes of valid UTF-8 and no slash; any other makes keys that
// every call refuses with ErrInvalidKey. Operators see the whole name, "@shop/order:42", whose
// limit of 255 bytes includes the namespace.
//
// Hashed families of all namespaces share the 65,536 center locks: keys of two namespaces exclude
// each other as two keys of one do, 1 in 65,536 pairs. Give applications that must never wait for
// each other separate schemas.
type Namespace string

// Named returns the key of the given name in the namespace: see the function Named.
func (n Namespace) Named(name string) Key { return n.key(name) }

// In puts the keys of a family into a namespace. The default is none.
func In(n Namespace) FamilyOption { return func(o *familyOptions) { o.namespace = &n } }

// ParseKey returns the named key whose String is text, also in a namespace:
// ParseKey(key.String()). It is for operators' tools, which read keys from a list or from a user.
// Named refuses the text of a namespace's key, so that users who choose a name can't choose a key
// of another application.
func ParseKey(text string) Key {
	rest, in := strings.CutPrefix(text, namespaceMark)
	if !in {
		return Named(text)
	}
	namespace, name, _ := strings.Cut(rest, namespaceEnd)
	return Namespace(namespace).key(name)
}

func (n Namespace) key(name string) Key {
	k := newKey(n.prefix()+name, false)
	if name == "" {
		k.bad = "the name is empty"
	}
	k.bad = cmp.Or(n.bad(), k.bad)
	return k
}

func (n Namespace) prefix() string { return namespaceMark + string(n) + namespaceEnd }

// bad returns why the namespace has no valid keys.
func (n Namespace) bad() string {
	switch {
	case n == "":
		return "the namespace is empty"
	case len(n) > maxNamespace:
		return fmt.Sprintf("the namespace has %d bytes, %d are allowed", len(n), maxNamespace)
	case strings.Contains(string(n), namespaceEnd):
		return fmt.Sprintf("the namespace %q has a slash", string(n))
	case !utf8.ValidString(string(n)):
		return "the namespace is not valid UTF-8"
	}
	return ""
}

// marked returns why a name that is made without a namespace is not valid.
func marked(name string) string {
	if strings.HasPrefix(name, namespaceMark) {
		return "names that begin with " + namespaceMark + " are those of a Namespace"
	}
	return ""
}
