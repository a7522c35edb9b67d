# The tools are pinned here and stay out of go.mod: they need a newer Go than
# the library does, and go run fetches that, too.
SQLC     ?= go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
GOLANGCI ?= go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The servers to run on; the DSN of one that runs already can be given in
# LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN.
ENGINES   ?= mariadb,mysql
BENCHTIME ?= 1s

GOTEST      = go test -race -count=1 -parallel 8 -timeout 20m
WITHSERVERS = go run ./internal/testdb/withservers -engines $(ENGINES)

# What Docker offers to make test-matrix.
IMAGES ?= mariadb:10.11 mariadb:11.8 mysql:8.0 mysql:8.4 mysql:9

.PHONY: help test test-cluster test-matrix demo bench generate verify verify-sql verify-go lint

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## Run all tests with the race detector on the servers of ENGINES.
	internal/tools/need-cc.sh
	CGO_ENABLED=1 $(WITHSERVERS) -- sh -c '$(GOTEST) ./... && cd tests && $(GOTEST) ./...'

test-cluster: ## Run the tests on a Galera cluster and over a fail-over; CLUSTER_DURATION=30s of faults.
	internal/tools/need-cc.sh
	cd tests && CGO_ENABLED=1 $(GOTEST) -tags cluster ./cluster

test-matrix: ## Run make test on the images of IMAGES, which needs Docker.
	@docker info >/dev/null || { echo "make test-matrix needs Docker, and docker info fails here."; exit 1; }
	@for image in $(IMAGES); do \
		engine=$${image%%:*}; \
		variable=LOCKSTEP_$$(echo $$engine | tr a-z A-Z); \
		echo "make test on $$image"; \
		env -u $${variable}_DSN $${variable}_IMAGE=$$image $(MAKE) test ENGINES=$$engine || exit 1; \
	done

demo: ## Run examples/quickstart on the servers of ENGINES.
	$(WITHSERVERS) -- go run ./examples/quickstart

bench: ## Run the benchmarks on servers that flush every commit; BENCHTIME=1s.
	$(WITHSERVERS) -durable -- go test -run '^$$' -bench . -benchtime $(BENCHTIME) ./...

generate: ## Generate the code of every sqlc.yaml.
	@find . -name sqlc.yaml -not -path '*/.*/*' | sort | while read -r config; do \
		echo "sqlc generate --file $$config"; \
		$(SQLC) generate --file "$$config" || exit 1; \
	done

verify: verify-go verify-sql ## Check all that needs no tests: generated code, queries, format, lint, go.mod.

verify-sql: ## Check the queries and the generated code on the servers of ENGINES.
	$(WITHSERVERS) -- go run ./internal/tools/verify -sqlc '$(SQLC)'

verify-go: lint
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || \
		{ echo "Not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	@for module in . tests; do \
		(cd $$module && go vet -tags cluster ./... && go mod tidy -diff) || \
		{ echo "go vet has failed in $$module, or its go.mod is not tidy: run go mod tidy there."; exit 1; }; \
	done

lint: ## Run golangci-lint.
	$(GOLANGCI) run
	cd tests && $(GOLANGCI) run --build-tags cluster
