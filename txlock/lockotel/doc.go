// Package lockotel measures locks and leases with OpenTelemetry. It is a package of its
// own, so that programs without OpenTelemetry don't link it.
//
//	observer, err := lockotel.New(otel.Meter("shop"))
//	m, err := lease.NewManager(db, lease.Observe(observer))
//
// # What is measured
//
// [New] names the instruments: the time to a grant or refusal, waits, holds, what was left
// of leases at their renewals, and losses. Their attributes are [Kind], [Family],
// [Shared], [Fair] and [Outcome].
//
// # What it is not
//
// It makes no spans, and has no attribute for the key, the owner or the token, which have
// too many values. A txlock.Observer of your own can have them.
package lockotel
