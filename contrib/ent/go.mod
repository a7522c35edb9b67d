module github.com/dca00107/lockstep/contrib/ent

go 1.25.0

require (
	entgo.io/ent v0.14.5
	github.com/dca00107/lockstep v0.0.0-00010101000000-000000000000
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/go-sql-driver/mysql v1.10.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
)

replace github.com/dca00107/lockstep => ../../
