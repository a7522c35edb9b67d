module github.com/dca00107/lockstep/examples/metrics

go 1.25.0

require (
	github.com/dca00107/lockstep v0.0.0
	github.com/dca00107/lockstep/examples v0.0.0
	github.com/dca00107/lockstep/txlock/lockotel v0.0.0
	github.com/prometheus/client_golang v1.23.2
	go.opentelemetry.io/otel v1.42.0
	go.opentelemetry.io/otel/exporters/prometheus v0.64.0
	go.opentelemetry.io/otel/sdk/metric v1.42.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-sql-driver/mysql v1.10.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.2 // indirect
	github.com/prometheus/common v0.67.5 // indirect
	github.com/prometheus/otlptranslator v1.0.0 // indirect
	github.com/prometheus/procfs v0.19.2 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel/metric v1.42.0 // indirect
	go.opentelemetry.io/otel/sdk v1.42.0 // indirect
	go.opentelemetry.io/otel/trace v1.42.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.yaml.in/yaml/v2 v2.4.3 // indirect
	golang.org/x/sys v0.42.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

replace (
	github.com/dca00107/lockstep => ../../
	github.com/dca00107/lockstep/examples => ../
	github.com/dca00107/lockstep/lockgorm => ../../lockgorm
	github.com/dca00107/lockstep/txlock/lockotel => ../../txlock/lockotel
	github.com/dca00107/lockstep/txlock/locktest => ../../txlock/locktest
)
