// Package recipes has the README's recipes for schedulers that need no adapter: what is
// shown is in the tests. It is a module of its own, so that nobody else compiles these
// libraries.
package recipes
