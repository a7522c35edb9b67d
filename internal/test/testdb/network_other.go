//go:build !linux

package testdb

import "errors"

// namespace is a network namespace, which only Linux has.
type namespace struct{ path string }

func newNamespace() (*namespace, error) {
	return nil, errors.New("only Linux has network namespaces")
}

func (n *namespace) in(f func()) { f() }

func (n *namespace) close() error { return nil }
