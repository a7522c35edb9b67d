module github.com/dca00107/lockstep

go 1.25.0

require (
	github.com/DATA-DOG/go-sqlmock v1.5.2
	github.com/cenkalti/backoff/v5 v5.0.3
	github.com/go-sql-driver/mysql v1.10.1
	github.com/google/uuid v1.6.0
	github.com/robfig/cron/v3 v3.0.1
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.42.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/stretchr/testify v1.11.1 // indirect
)
