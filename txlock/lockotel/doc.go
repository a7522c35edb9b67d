// Package lockotel measures locks, leases, jobs and elections with OpenTelemetry. It is a separate
// module, so that programs without OpenTelemetry don't depend on it.
//
//	observer, err := lockotel.New(otel.Meter("shop"),
//		lockotel.WithAttributes(semconv.DBSystemNameMariaDB, semconv.DBNamespace("shop")),
//		lockotel.WithTracerProvider(otel.GetTracerProvider()))
//	db, err := locksqlc.Open(dsn, txlock.Observe(observer.Observe))
//	leases, err := lease.NewManager(db, lease.Observe(observer.Observe))
//	jobs, err := job.New(db, leases, job.Observe(observer.Job))
//	stop, err := observer.WatchJobs(jobs)
//	election, err := elect.New(leases, key, elect.Observe(observer.Election))
//
// # What is measured
//
// [New] lists the instruments: what is held and waited for now, how long calls took, how long locks
// were held, and counters of what goes wrong. Their attributes are [Kind], [Family], [Shared],
// [Fair] and [Outcome], or [Job] and [Election]. There is no attribute for the key, the owner or
// the token, because these have too many values. Names, units, error.type and what [WithAttributes]
// is for follow the semantic conventions of OpenTelemetry for databases.
//
// # Spans
//
// [WithTracerProvider] turns them on: one span for each lock, lease and key of Once that is granted
// or refused, from the call to its end, so that a trace shows the wait. Spans have the key only
// with [WithKeys].
//
// # Prometheus
//
// The module examples/metrics serves /metrics through OpenTelemetry's exporter. contrib/grafana has
// a dashboard and alerts for what it serves.
package lockotel
