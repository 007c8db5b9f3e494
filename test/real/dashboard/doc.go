// Package dashboard has tests of sondectl dashboard in a real browser, against a mesh of real Envoys.
package dashboard
