module github.com/dca00107/lockstep/examples

go 1.25.0

require (
	github.com/DATA-DOG/go-sqlmock v1.5.2
	github.com/dca00107/lockstep v0.0.0
	github.com/dca00107/lockstep/lockgorm v0.0.0
	github.com/dca00107/lockstep/txlock/locktest v0.0.0
	github.com/go-sql-driver/mysql v1.10.1
	github.com/google/wire v0.7.0
	go.uber.org/fx v1.24.0
	gorm.io/driver/mysql v1.6.0
	gorm.io/gorm v1.31.2
	gorm.io/plugin/dbresolver v1.6.2
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jinzhu/inflection v1.0.0 // indirect
	github.com/jinzhu/now v1.1.5 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	go.uber.org/dig v1.19.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.uber.org/multierr v1.10.0 // indirect
	go.uber.org/zap v1.26.0 // indirect
	golang.org/x/sys v0.42.0 // indirect
	golang.org/x/text v0.20.0 // indirect
)

replace (
	github.com/dca00107/lockstep => ../
	github.com/dca00107/lockstep/lockgorm => ../lockgorm
	github.com/dca00107/lockstep/txlock/locktest => ../txlock/locktest
)
