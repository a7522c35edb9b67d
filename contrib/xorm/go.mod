module github.com/dca00107/lockstep/contrib/xorm

go 1.25.0

require (
	github.com/dca00107/lockstep v0.0.0
	xorm.io/xorm v1.4.3
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/go-sql-driver/mysql v1.10.1 // indirect
	github.com/goccy/go-json v0.10.5 // indirect
	github.com/golang/snappy v0.0.4 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/syndtr/goleveldb v1.0.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	xorm.io/builder v0.3.13 // indirect
)

replace github.com/dca00107/lockstep => ../../
