// Package proxies has what stands between clients and a server, and judges what locks and
// leases are worth behind it: HAProxy and MySQL Router, whose tests have the build tag proxies
// (make test-proxies), and a stub that does wrong what a proxy can do wrong.
package proxies
