module example.com/shop

go 1.25.0

replace (
	github.com/dca00107/lockstep => ../../
	github.com/dca00107/lockstep/cmd/lockgen => ../../cmd/lockgen
	github.com/dca00107/lockstep/txlock/locktest => ../../txlock/locktest
)

require (
	github.com/DATA-DOG/go-sqlmock v1.5.2
	github.com/dca00107/lockstep v0.0.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/dca00107/lockstep/cmd/lockgen v0.0.0 // indirect
	github.com/dca00107/lockstep/txlock/locktest v0.0.0
	github.com/go-sql-driver/mysql v1.10.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/pingcap/errors v0.11.5-0.20250523034308-74f78ae071ee // indirect
	github.com/pingcap/failpoint v0.0.0-20240528011301-b51a646c7c86 // indirect
	github.com/pingcap/log v1.1.0 // indirect
	github.com/pingcap/tidb/pkg/parser v0.0.0-20260418072757-ce92298d1124 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/mod v0.29.0 // indirect
	golang.org/x/sync v0.17.0 // indirect
	golang.org/x/text v0.20.0 // indirect
	golang.org/x/tools v0.38.0 // indirect
	gopkg.in/natefinch/lumberjack.v2 v2.2.1 // indirect
)

tool github.com/dca00107/lockstep/cmd/lockgen
