// Package tests checks the library as a whole, by means that its own go.mod
// should not carry: models (pgregory.net/rapid), linearizability
// (anishathalye/porcupine), broken networks (Shopify/toxiproxy) and migration tools.
package tests
