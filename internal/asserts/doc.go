// Package asserts switches off txlock.AssertLocked in tests. Package locktest sets the
// switch ([Off]), txlock reads it ([AreOff]). It is a package of its own so that users
// can't reach it, and txlock doesn't import locktest.
package asserts
