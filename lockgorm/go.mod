module github.com/dca00107/lockstep/lockgorm

go 1.25.0

require (
	github.com/DATA-DOG/go-sqlmock v1.5.2
	github.com/dca00107/lockstep v0.0.0
	github.com/go-sql-driver/mysql v1.10.1
	github.com/google/uuid v1.6.0
	go.uber.org/goleak v1.3.0
	gorm.io/driver/mysql v1.6.0
	gorm.io/gorm v1.30.0
	gorm.io/plugin/dbresolver v1.6.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/dca00107/lockstep/txlock/locktest v0.0.0
	github.com/jinzhu/inflection v1.0.0 // indirect
	github.com/jinzhu/now v1.1.5 // indirect
	golang.org/x/sys v0.42.0 // indirect
	golang.org/x/text v0.20.0 // indirect
)

replace (
	github.com/dca00107/lockstep => ../
	github.com/dca00107/lockstep/txlock/locktest => ../txlock/locktest
)
