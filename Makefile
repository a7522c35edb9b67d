# The tools are pinned here and stay out of go.mod: they need a newer Go than
# the library does, and go run fetches that, too.
SQLC      ?= go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
GOLANGCI  ?= GOGC=400 go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
VULNCHECK ?= go run golang.org/x/vuln/cmd/govulncheck@v1.8.0
# The last release that the module proxy has whole; the threshold is for sqlmock.
LICENCES  ?= go run github.com/google/go-licenses@v1.6.0 check --confidence_threshold 0.8 --include_tests \
	--ignore github.com/dca00107/lockstep --ignore example.com/shop --ignore example.com/start --allowed_licenses Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT,MPL-2.0
# The database of vulnerabilities; none leaves them out, where no network reaches it.
VULNDB    ?= https://vuln.go.dev

# The modules: what links GORM or OpenTelemetry is no part of the root module, contrib has one
# for each library that it adapts to, and one of recipes for others, and so has each program.
PARTS    = lockgorm txlock/lockotel txlock/locktest
CONTRIB  = contrib/gocron contrib/cron contrib/ent contrib/xorm contrib/recipes
COMMANDS = cmd/lockgen cmd/lockvet cmd/lockstep
# Those that make test runs under the race detector beside the library.
RACED    = $(filter-out lockgorm,$(PARTS)) examples $(CONTRIB) tests/gormgen examples/metrics
MODULES  = . lockgorm $(RACED) tests bench $(COMMANDS) tests/lockhttp examples/sqlcorders examples/start
export SQLC GOLANGCI VULNCHECK LICENCES VULNDB PARTS COMMANDS RACED MODULES

# The servers to run on; the DSN of one that runs already can be given in
# LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN.
ENGINES     ?= mariadb,mysql
WITHSERVERS  = go run ./internal/test/testdb/withservers -engines $(ENGINES)
DURABLE      = $(WITHSERVERS) $(if $(filter tidb vitess,$(ENGINES)),,-durable) --
TOOLS        = internal/test/tools
NEED_CC      = $(TOOLS)/need-cc.sh
SUITE        = go run ./$(TOOLS)/suite $(if $(ONLY),-only $(ONLY))

# Some of what test, verify or mutate has, by its names behind commas.
ONLY         ?=
# A package that takes so long hangs.
TEST_TIMEOUT ?= 20m
# From which seed chaos makes faults; 0 is a random one.
SEED         ?= 0
# What Docker offers to make test-matrix, and the suites of Debian whose MariaDB it takes
# where IMAGES is empty.
IMAGES       ?= mariadb:10.6 mariadb:10.11 mariadb:11.4 mariadb:11.8 mysql:8.0 mysql:8.4 mysql:9
DEBIANS      ?= bookworm trixie
DEPS         ?= oldest newest
DEPS_PACKAGES ?= ./txlock/... ./locksqlc ./schema ./internal/guard ./internal/test/locksuite
# What others have tested; and the directory tests of a checkout of GORM in the version of
# tests/gormgen, where the module proxy doesn't serve it.
SUITES       ?= driver,dbresolver,gorm
FUZZTIME     ?= 10m
# Under which path the site stands on its host.
SITE_BASE    ?= /

.PHONY: help quick lint test test-cluster test-proxies test-foreign test-matrix test-deps fuzz cover demo bench scale chaos mutate soak generate site verify api release

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quick: ## Run all of the library that needs no server, without what has passed and wasn't changed.
	@$(SUITE) quick

lint: ## Run golangci-lint, and look for dead code.
	@go run ./$(TOOLS)/suite -only lint verify

test: ## Run all tests with the race detector on the servers of ENGINES, or ONLY=leases,gorm; LOCKSTEP_SEED=7 draws other histories, LOCKSTEP_LONG=1 any and more; BUSY=16 runs beside busy processes.
	$(NEED_CC)
	CGO_ENABLED=1 go build -race ./...
	$(if $(BUSY),$(TOOLS)/loaded.sh $(BUSY)) $(WITHSERVERS) -- $(SUITE) $(if $(BUSY),-beside 6 -timeout 120m,-timeout $(TEST_TIMEOUT)) test

test-cluster: ## Run the tests on clusters of the ENGINES and over a fail-over; CLUSTER_DURATION=30s of faults.
	$(NEED_CC)
	LOCKSTEP_ENGINES=$(ENGINES) go run ./$(TOOLS)/suite -only cluster -timeout 60m test

test-proxies: ## Run the tests behind HAProxy, MySQL Router and a stub that does wrong what a proxy can; PROXY_DURATION=30s of fail-overs.
	$(NEED_CC)
	$(TOOLS)/need-haproxy.sh
	LOCKSTEP_ENGINES=$(ENGINES) go run ./$(TOOLS)/suite -only proxies -timeout 60m test

test-foreign: ## Run the tests of SUITES, written by others, on a plain and a guarded pool, and compare; GORM_TESTS=.../gorm/tests.
	cd tests && go run ./foreign -engines $(ENGINES) -suites $(SUITES) -gorm "$(abspath $(GORM_TESTS))"

test-matrix: ## Run make test on the images of IMAGES, which needs Docker, or with IMAGES= on the MariaDB of Debian's DEBIANS.
	@$(TOOLS)/matrix.sh "$(IMAGES)" "$(DEBIANS)"

test-deps: ## Test the library on ENGINES with the oldest and the newest Go, go-sql-driver and GORM that go.mod allows; DEPS=newest.
	@for which in $(DEPS); do $(WITHSERVERS) -- $(TOOLS)/test-deps.sh $$which $(DEPS_PACKAGES) || exit 1; done

fuzz: ## Run every fuzz target of all modules on ENGINES for FUZZTIME=10m; FUZZKEEP=20 keeps so many inputs of each in testdata/fuzz.
	$(WITHSERVERS) -- sh -c 'failed=0; for module in $(MODULES); do (cd $$module && $(CURDIR)/$(TOOLS)/fuzz.sh $(FUZZTIME)) || failed=1; done; exit $$failed'

cover: ## Print which part of each package's statements the tests execute.
	$(WITHSERVERS) -- $(TOOLS)/cover.sh . $(PARTS)

demo: ## Run examples/quickstart on the servers of ENGINES.
	@$(TOOLS)/compile.sh internal/test/testdb/withservers examples/quickstart
	$(WITHSERVERS) -- go run -C examples ./quickstart

bench: ## Measure lockstep beside other locks, which takes an hour or two: .bench/bench.md and, where nothing is left out, docs/performance.md; CONTENDERS=lockstep,redislock BENCHFLAGS=-scenarios=a,c, or QUICK=1 for two minutes.
	$(DURABLE) go run -C bench . -out "$(CURDIR)/.bench" $(if $(QUICK),-quick,$(if $(CONTENDERS)$(BENCHFLAGS),,-page "$(CURDIR)/docs/performance.md")) -contenders "$(CONTENDERS)" $(BENCHFLAGS)

scale: ## Measure what one server carries, simulate 10,000 processes, and write the tables of docs/scale.md; SCALEFLAGS="-processes 16".
	$(DURABLE) go test -C tests -count=1 -vet=off -timeout 60m ./scale -page "$(CURDIR)/docs/scale.md" $(SCALEFLAGS)

chaos: ## Torment client processes and servers for DURATION=10m by faults from a SEED, and judge what they did; with PROVE=1 switch each guard of the library off in turn, which chaos must notice.
	$(NEED_CC)
	cd tests && CGO_ENABLED=1 go run -race ./chaos -engines $(ENGINES) -seed $(SEED) -duration $(or $(DURATION),$(if $(PROVE),10s,10m)) $(if $(PROVE),-prove) $(CHAOSFLAGS)

mutate: ## Break the decisions of the library one by one on the servers of ENGINES, which tests must notice; ONLY=lease,once MUTATEFLAGS=-j=4.
	$(WITHSERVERS) -- go run -C tests ./mutate -engines $(ENGINES) -only "$(ONLY)" $(MUTATEFLAGS)

soak: ## Use every kind of lock for DURATION=6h, note the figures each minute and test that they are flat: .soak/summary.md.
	$(WITHSERVERS) -- go run -C tests ./soak -duration $(or $(DURATION),6h) -out "$(CURDIR)/.soak" $(SOAKFLAGS)

generate: ## Generate the code of sqlc, lockgen and gorm.io/gen.
	go run ./$(TOOLS)/verify -sqlc '$(SQLC)' -generate
	cd tests/gormgen && go run ./generate
	cd tests/chaos/generated && $(SQLC) generate
	cd cmd/lockgen && go run . ../../tests/chaos/generated
	cd examples/sqlcorders && go generate ./...

site: ## Make a site of the pages, with a search, in .site; SITE_BASE=/lockstep/ where it doesn't stand at the root of its host.
	$(TOOLS)/need-node.sh
	cd internal/site && npm ci && SITE_BASE=$(SITE_BASE) npm run build

verify: ## Check generated code, queries, format, lint, go.mod and dependencies; ONLY=sql, and by night ONLY=docs,newcomer,release,site.
	$(WITHSERVERS) -- $(SUITE) verify

api: ## Compare what the library exports with the last release, or with BASE=commit.
	@for module in . $(PARTS); do (cd $$module && BASE=$(BASE) $(CURDIR)/$(TOOLS)/api.sh) || exit 1; done

release: ## Tag all modules: VERSION=v0.1.0 TESTED=1, or DRY=1 to try it in a clone; PUSH=1 pushes the tags.
	@go run -C tests ./release -version "$(VERSION)" $(if $(TESTED),-tested) $(if $(DRY),-dry) $(if $(PUSH),-push)
