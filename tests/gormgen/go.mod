module github.com/dca00107/lockstep/tests/gormgen

go 1.25.0

require (
	github.com/dca00107/lockstep v0.0.0
	github.com/dca00107/lockstep/lockgorm v0.0.0
	github.com/go-sql-driver/mysql v1.10.1
	gorm.io/driver/mysql v1.6.0
	gorm.io/driver/sqlite v1.6.0
	gorm.io/gen v0.3.27
	gorm.io/gorm v1.31.2
	gorm.io/plugin/dbresolver v1.6.2
	gorm.io/sharding v0.6.1
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/bwmarrin/snowflake v0.3.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jinzhu/inflection v1.0.0 // indirect
	github.com/jinzhu/now v1.1.5 // indirect
	github.com/longbridgeapp/sqlparser v0.3.1 // indirect
	github.com/mattn/go-sqlite3 v1.14.22 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/exp v0.0.0-20230817173708-d852ddb80c63 // indirect
	golang.org/x/mod v0.30.0 // indirect
	golang.org/x/sync v0.18.0 // indirect
	golang.org/x/sys v0.42.0 // indirect
	golang.org/x/text v0.20.0 // indirect
	golang.org/x/tools v0.39.0 // indirect
	gorm.io/datatypes v1.2.4 // indirect
	gorm.io/hints v1.1.2 // indirect
)

replace (
	github.com/dca00107/lockstep => ../../
	github.com/dca00107/lockstep/lockgorm => ../../lockgorm
	github.com/dca00107/lockstep/txlock/locktest => ../../txlock/locktest
)
