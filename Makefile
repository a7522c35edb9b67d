# The tools are pinned here and stay out of go.mod: they need a newer Go than
# the library does, and go run fetches that, too.
SQLC     ?= go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
GOLANGCI ?= GOGC=400 go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
VULNCHECK ?= go run golang.org/x/vuln/cmd/govulncheck@v1.8.0
# The last release that the module proxy has whole. The threshold is for sqlmock, which
# writes a sentence of its own above the BSD licence.
LICENCES ?= go run github.com/google/go-licenses@v1.6.0 check --confidence_threshold 0.8 --include_tests \
	--ignore github.com/dca00107/lockstep --ignore example.com/shop --ignore example.com/start --allowed_licenses Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT,MPL-2.0

# What draws the charts of module bench, and is in no other: freetype is under the FreeType
# License, which this tool can't read, and svgo under CC BY 4.0.
CHARTS = --ignore github.com/golang/freetype --ignore github.com/ajstarks/svgo

# What is the Redis of the tests of contrib/recipes, and is in no other: parts of it are under
# BSL-1.0 and the Unlicense.
REDIS = --ignore github.com/alicebob/miniredis

# The database of vulnerabilities; none leaves them out, where no network reaches it.
VULNDB ?= https://vuln.go.dev

# What draws docs/diagrams: D2 from sequences and boxes, freeze from what a terminal shows.
D2     ?= go run oss.terrastruct.com/d2@v0.7.1
FREEZE ?= go run github.com/charmbracelet/freeze@v0.2.2

# Under which path the site of make site stands on its host.
SITE_BASE ?= /

# The servers to run on; the DSN of one that runs already can be given in
# LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN.
ENGINES   ?= mariadb,mysql
BENCHTIME ?= 1s

# From which seed chaos makes faults; 0 is a random one.
SEED       ?= 0
CHAOSFLAGS ?=
SOAKFLAGS  ?=

# contrib has a module for each library that it adapts to, and one of recipes for others.
CONTRIB = contrib/gocron contrib/cron contrib/recipes
# The programs beside the library, a module each.
COMMANDS = cmd/lockgen cmd/lockvet cmd/lockstep
# What tests lockgorm with the queries that gorm.io/gen generates, and beside gorm.io/sharding.
GORMGEN  = tests/gormgen
# The queries of sqlc and lockgen that make chaos uses.
CHAOSDB  = tests/chaos/generated
# What reads the pages of lockhttp in a browser.
BROWSER  = tests/lockhttp
# What a user has at the end of docs/tutorials/sqlc.md.
TUTORIAL = examples/sqlcorders
# What a user has who follows README.md.
START    = examples/start
# The example that serves the metrics for contrib/grafana.
METRICS  = examples/metrics
# What links GORM and OpenTelemetry is no part of the root module; examples link GORM.
PARTS    = lockgorm txlock/lockotel
MODULES  = . $(PARTS) examples tests bench $(CONTRIB) $(COMMANDS) $(GORMGEN) $(BROWSER) $(TUTORIAL) $(START) $(METRICS)

# make verify vets. Without a race to report a test binary needs no second to say so at
# its end, and garbage is collected four times as often by default.
GOTEST      = GORACE=atexit_sleep_ms=0 GOGC=400 go test -race -count=1 -vet=off -p 1 -timeout $(TEST_TIMEOUT)
# A package that takes so long hangs.
TEST_TIMEOUT ?= 20m
# Three groups run beside each other, one package of each at a time: the leases and the
# module wait for times to live, the adapters for locks, and the others need processors.
# What takes longest comes first, so that no core is idle at the end.
OTHERS      = "/(txlock/lease|txlock/lockmock|locksqlc|locksuite)$$"
BESIDE      = $(MAKE) --no-print-directory --jobs=3 --keep-going
CHAOS       = cd tests && CGO_ENABLED=1 go run -race ./chaos -engines $(ENGINES) -seed $(SEED)
WITHSERVERS = go run ./internal/test/testdb/withservers -engines $(ENGINES)
BENCH       = $(WITHSERVERS) -durable -- go run -C bench .

# Parts of the names of the areas and files that make mutate breaks, behind commas; none stands
# for all.
ONLY        ?=
MUTATEFLAGS ?=

# Parts of the names of the contenders that make bench measures; none stands for all.
CONTENDERS ?=
BENCHFLAGS ?=
SCALEFLAGS ?=

# What Docker offers to make test-matrix, and the suites of Debian whose MariaDB it takes
# where IMAGES is empty.
IMAGES  ?= mariadb:10.6 mariadb:10.11 mariadb:11.4 mariadb:11.8 mysql:8.0 mysql:8.4 mysql:9
DEBIANS ?= bookworm trixie

# How long make fuzz runs each fuzz target.
FUZZTIME ?= 10m
FUZZ      = $(CURDIR)/internal/test/tools/fuzz.sh $(FUZZTIME)

# What make test-deps tests with the oldest and the newest versions.
DEPS          ?= oldest newest
DEPS_PACKAGES ?= ./txlock/... ./locksqlc ./schema ./internal/guard ./internal/test/locksuite

# What others have tested: go-sql-driver, dbresolver and GORM; and the directory tests of a
# checkout of GORM in the version of tests/gormgen, where the module proxy doesn't serve it.
SUITES     ?= driver,dbresolver,gorm
GORM_TESTS ?=

.PHONY: help quick test test-loaded test-leases test-gorm test-sqlc test-others test-module test-beside test-bench test-stores test-cluster test-proxies test-foreign test-sqlite test-matrix test-deps fuzz cover demo diagrams site bench bench-quick hand-over benchmarks scale chaos chaos-proof soak mutate generate verify verify-sql verify-docs verify-newcomer verify-release verify-pages verify-site verify-rules verify-go lint api release licences vulnerabilities

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What expects statements, and what explores interleavings, takes ten times as long under the
# race detector, which watches a few of the interleavings in make test: all of them run here.
QUICK    = GORACE=atexit_sleep_ms=0 GOGC=400 LOCKSTEP_ENGINES=none CGO_ENABLED=1 go test -parallel 8
ALONE    = "/txlock/(lockmock|quorum)$$"

quick: ## Run golangci-lint and all that needs no server, with the race detector where goroutines meet.
	internal/test/tools/need-cc.sh
	@$(QUICK) $$(go list ./... | grep -E $(ALONE))
	@$(QUICK) -race $$(go list ./... | grep -vE $(ALONE))
	@for module in $(PARTS) examples tests; do (cd $$module && $(QUICK) -race ./...) || exit 1; done
	@for module in bench $(COMMANDS) $(GORMGEN) $(BROWSER) $(METRICS); do (cd $$module && $(QUICK) ./...) || exit 1; done
	@$(MAKE) --no-print-directory lint

test: ## Run all tests with the race detector on the servers of ENGINES; LOCKSTEP_SEED=7 draws other histories, LOCKSTEP_LONG=1 any and more.
	internal/test/tools/need-cc.sh
	CGO_ENABLED=1 go build -race ./...
	CGO_ENABLED=1 $(WITHSERVERS) -- $(BESIDE) test-leases test-others test-module test-beside test-gorm test-sqlc test-stores test-bench

test-leases:
	@$(GOTEST) -parallel 8 ./txlock/lease

# How many processes with an endless loop make test-loaded starts.
BUSY ?= 16
test-loaded: ## Run make test beside BUSY=16 busy processes, which it must not notice.
	internal/test/tools/loaded.sh $(BUSY) $(MAKE) test TEST_TIMEOUT=120m

# Tests of adapters that have one goroutine and send tens of thousands of statements, or
# megabytes, which the race detector makes five times as dear, for nothing that it could find.
ONE_GOROUTINE = ^Test(AssignmentsAreOne|CommitWith(AsAlone|OtherRows)?|EveryForm|ImplicitCommit(WithoutLocks)?|LockedAndVersioned|LockWith(Errors)?|OnceGoesWrong|OnceValueThatCantBeStored|RandomConditions|Transparency|Version(AfterRollback|ColumnTooSmall|OfARowMadeAnew|OfEveryUpdate)|(Optimistic|Verbs)WithEditedTexts)$$
# Of the suite it watches each behaviour with each adapter and kind of key, and leaves out one
# setting of the driver, which prepares statements: lockgorm's that prepare are watched.
WATCHED_ONCE  = ^TestSuite$$/././^interpolate=false

test-gorm test-sqlc: test-%:
	@cd lock$* && $(GOTEST) -parallel 16 -skip '$(ONE_GOROUTINE)|$(WATCHED_ONCE)' .
	@cd lock$* && $(subst -race ,,$(GOTEST)) -parallel 16 -run '$(ONE_GOROUTINE)|$(WATCHED_ONCE)' .

# One goroutine with 10,000 keys.
LARGE = ^TestLockAllOfTenThousand$$

# Mocks have one goroutine, and take ten times as long under the race detector: so long
# that a release which should be answered at once goes on in the background.
test-others:
	@$(GOTEST) -parallel 8 -skip '$(LARGE)' ./internal/test/locksuite $$(go list ./... | grep -vE $(OTHERS))
	@go test -count=1 -vet=off -parallel 4 -timeout $(TEST_TIMEOUT) ./txlock/lockmock
	@$(subst -race ,,$(GOTEST)) -run '$(LARGE)' ./txlock

test-module:
	@cd tests && $(GOTEST) -parallel 8 -skip '^TestStores' $$(go list ./... | grep -vE '/(doctest|release)$$')

# The commands have one goroutine, and read the types of all that they look at: the race
# detector watches what lockgen has written. make verify looks at the files that it writes,
# follows the tutorials, and reads the pages of lockhttp in a browser.
test-beside:
	@for module in txlock/lockotel examples $(CONTRIB) $(GORMGEN) $(METRICS); do (cd $$module && $(GOTEST) ./...) || exit 1; done
	@for module in $(COMMANDS); do (cd $$module && $(subst -race ,,$(GOTEST)) -skip '$(GENERATED)|$(WRITES)' ./...) || exit 1; done
	@cd cmd/lockgen && $(GOTEST) -run '$(GENERATED)' .

GENERATED = ^Test(NoUpdateIsLost|Unlocked(Read)?LosesUpdates|Slices|Cities)$$
WRITES    = ^Test(Golden|Front.*|WithoutSQLC)$$

# Without the race detector, which would watch the same library again. Of the bench itself
# make quick watches what needs no server.
test-bench:
	@cd bench && $(subst -race ,,$(GOTEST)) ./...

# One processor for the tests that play with servers in a synctest bubble: the race detector
# crashes where two goroutines of a bubble find timers due at once (seen with Go 1.26).
test-stores:
	@cd tests && $(GOTEST) -parallel 8 -cpu 1 -run '^TestStores' .

test-cluster: ## Run the tests on clusters of the ENGINES and over a fail-over; CLUSTER_DURATION=30s of faults.
	internal/test/tools/need-cc.sh
	LOCKSTEP_ENGINES=none CGO_ENABLED=1 $(GOTEST) -tags cluster -run '^TestNetwork$$' ./internal/test/testdb
	cd tests && LOCKSTEP_ENGINES=$(ENGINES) CGO_ENABLED=1 $(GOTEST) -timeout 60m -parallel 8 -tags cluster ./cluster

test-proxies: ## Run the tests behind HAProxy, MySQL Router and a stub that does wrong what a proxy can; PROXY_DURATION=30s of fail-overs.
	internal/test/tools/need-cc.sh
	internal/test/tools/need-haproxy.sh
	cd tests && LOCKSTEP_ENGINES=$(ENGINES) CGO_ENABLED=1 $(GOTEST) -timeout 60m -parallel 8 -tags proxies ./proxies
	cd tests && LOCKSTEP_ENGINES=$(ENGINES) CGO_ENABLED=1 $(GOTEST) -timeout 60m -tags cluster,proxies -run '^TestRouter$$' ./cluster

test-foreign: ## Run the tests of SUITES, written by others, on a plain and a guarded pool, and compare; GORM_TESTS=.../gorm/tests.
	cd tests && go run ./foreign -engines $(ENGINES) -suites $(SUITES) -gorm "$(abspath $(GORM_TESTS))"

test-sqlite: ## Test lockgorm.Unlocked on SQLite, which takes minutes to compile.
	cd $(GORMGEN) && CGO_ENABLED=1 go test -count=1 -tags sqlite ./sqlite

test-matrix: ## Run make test on the images of IMAGES, which needs Docker, or with IMAGES= on the MariaDB of Debian's DEBIANS.
	@test -z "$(IMAGES)" || docker info >/dev/null || { \
		echo "make test-matrix needs Docker for $(IMAGES), and docker info fails here. With IMAGES= it takes the MariaDB of Debian's $(DEBIANS)."; exit 1; }
	@for image in $(IMAGES); do \
		engine=$${image%%:*}; \
		variable=LOCKSTEP_$$(echo $$engine | tr a-z A-Z); \
		echo "make test on $$image"; \
		env -u $${variable}_DSN $${variable}_IMAGE=$$image $(MAKE) test ENGINES=$$engine || exit 1; \
	done
	@for suite in $(if $(IMAGES),,$(DEBIANS)); do \
		echo "make test on the MariaDB of Debian $$suite"; \
		env -u LOCKSTEP_MARIADB_DSN -u LOCKSTEP_MARIADB_IMAGE LOCKSTEP_MARIADB_DEBIAN=$$suite $(MAKE) test ENGINES=mariadb || exit 1; \
	done
	@echo "make test has passed on $(or $(IMAGES),the MariaDB of Debian $(DEBIANS)), and was run on nothing else."

test-deps: ## Test the library on ENGINES with the oldest and the newest Go, go-sql-driver and GORM that go.mod allows; DEPS=newest.
	@for which in $(DEPS); do $(WITHSERVERS) -- internal/test/tools/test-deps.sh $$which $(DEPS_PACKAGES) || exit 1; done

fuzz: ## Run every fuzz target of all modules on ENGINES for FUZZTIME=10m; FUZZKEEP=20 keeps so many inputs of each in testdata/fuzz.
	$(WITHSERVERS) -- sh -c 'failed=0; for module in $(MODULES); do (cd $$module && $(FUZZ)) || failed=1; done; exit $$failed'

PATH_OF = github.com/dca00107/lockstep
COVERED = $(PATH_OF)/txlock/...,$(PATH_OF)/locksqlc,$(PATH_OF)/lockgorm,$(PATH_OF)/schema,$(PATH_OF)/internal/guard
cover: ## Print which part of each package's statements the tests execute.
	rm -rf .cover && mkdir .cover
	$(WITHSERVERS) -- sh -c 'for module in . $(PARTS); do (cd $$module && go test -count=1 -parallel 8 -timeout 20m -cover -coverpkg=$(COVERED) ./... -args -test.gocoverdir=$(CURDIR)/.cover) || exit 1; done'
	go tool covdata percent -i=.cover

demo: ## Run examples/quickstart on the servers of ENGINES.
	$(WITHSERVERS) -- go run -C examples ./quickstart

bench: ## Measure lockstep beside other locks, which takes an hour or two: docs/performance.md, .bench/bench.md; CONTENDERS=lockstep,redislock BENCHFLAGS=-scenarios=a,c.
	$(BENCH) -out "$(CURDIR)/.bench" $(if $(CONTENDERS)$(BENCHFLAGS),,-page "$(CURDIR)/docs/performance.md") -contenders "$(CONTENDERS)" $(BENCHFLAGS)

bench-quick: ## The same in two minutes, for eyes: .bench/bench.md.
	$(BENCH) -quick -out "$(CURDIR)/.bench" -contenders "$(CONTENDERS)" $(BENCHFLAGS)

hand-over: ## Take the hand-over of one hot key apart, on servers that flush every commit.
	$(WITHSERVERS) -durable -- go run -C bench ./handover

benchmarks: ## Run the benchmarks of the packages on servers that flush every commit; BENCHTIME=1s.
	$(WITHSERVERS) -durable -- go test -run '^$$' -bench . -benchtime $(BENCHTIME) ./...

scale: ## Measure what one server carries, simulate 10,000 processes, and write the tables of docs/scale.md; SCALEFLAGS="-processes 16".
	$(WITHSERVERS) -durable -- go test -C tests -count=1 -vet=off -timeout 60m ./scale -page "$(CURDIR)/docs/scale.md" $(SCALEFLAGS)

chaos: DURATION ?= 10m
chaos: ## Torment client processes and servers for DURATION=10m by faults from a SEED, and judge what they did.
	internal/test/tools/need-cc.sh
	$(CHAOS) -duration $(DURATION) $(CHAOSFLAGS)

chaos-proof: ## Switch each guard of the library off in turn, which chaos must notice.
	internal/test/tools/need-cc.sh
	$(CHAOS) -duration 10s -prove $(CHAOSFLAGS)

mutate: ## Break the decisions of the library one by one on the servers of ENGINES, which tests must notice; ONLY=lease,once MUTATEFLAGS=-j=4.
	$(WITHSERVERS) -- go run -C tests ./mutate -engines $(ENGINES) -only "$(ONLY)" $(MUTATEFLAGS)

soak: DURATION ?= 6h
soak: ## Use every kind of lock for DURATION=6h, note the figures each minute and test that they are flat: .soak/summary.md.
	$(WITHSERVERS) -- go run -C tests ./soak -duration $(DURATION) -out "$(CURDIR)/.soak" $(SOAKFLAGS)

generate: ## Generate the code of sqlc, lockgen and gorm.io/gen.
	go run ./internal/test/tools/verify -sqlc '$(SQLC)' -generate
	cd $(GORMGEN) && go run ./generate
	cd $(CHAOSDB) && $(SQLC) generate
	cd cmd/lockgen && go run . ../../$(CHAOSDB)
	cd $(TUTORIAL) && go generate ./...

diagrams: ## Draw the SVGs of docs/diagrams from the texts beside them.
	@for source in docs/diagrams/*.d2; do $(D2) --theme=0 --dark-theme=200 --pad=20 $$source $${source%.d2}.svg || exit 1; done
	$(FREEZE) docs/diagrams/lockstep-top.txt --language text --theme github --font.family monospace --padding 20 --output docs/diagrams/lockstep-top.svg
	@chmod 644 docs/diagrams/*.svg

site: ## Make a site of the pages, with a search, in .site; SITE_BASE=/lockstep/ where it doesn't stand at the root of its host.
	internal/test/tools/need-node.sh
	cd internal/site && npm ci && SITE_BASE=$(SITE_BASE) npm run build

# Without caches each compiles much, beside the others.
PATIENT  = -count=1 -vet=off -timeout 25m
# One after the other they would leave a processor idle for half of the time.
VERIFIED = verify-go verify-sql verify-pages licences vulnerabilities verify-rules
verify: ## Check all that needs no tests: generated code, queries, format, lint, go.mod, dependencies.
	$(WITHSERVERS) -- $(BESIDE) --output-sync=target $(VERIFIED)

verify-sql: ## Check the queries and the generated code on the servers of ENGINES.
	$(WITHSERVERS) -- go run ./internal/test/tools/verify -sqlc '$(SQLC)'

verify-docs: ## Follow the tutorials on the servers of ENGINES, command by command.
	$(WITHSERVERS) -- go test -C tests $(PATIENT) ./doctest

verify-newcomer: ## Follow the README, in both languages, from an empty directory without any cache, and measure the time to the first lock.
	$(WITHSERVERS) -- env LOCKSTEP_BARE=1 go test -C tests -count=1 -vet=off -v -timeout 30m -run '^TestNewcomer$$' ./doctest

verify-release: ## Make a release in a clone, and try every module of it as users would.
	LOCKSTEP_LONG=1 LOCKSTEP_ENGINES=none go test -C tests $(PATIENT) ./release

api: ## Compare what the library exports with the last release, or with BASE=commit.
	@for module in . $(PARTS); do (cd $$module && BASE=$(BASE) $(CURDIR)/internal/test/tools/api.sh) || exit 1; done

release: ## Tag all modules: VERSION=v0.1.0 TESTED=1, or DRY=1 to try it in a clone; PUSH=1 pushes the tags.
	@go run -C tests ./release -version "$(VERSION)" $(if $(TESTED),-tested) $(if $(DRY),-dry) $(if $(PUSH),-push)

verify-pages: ## Read the pages of lockhttp in Chromium, on the servers of ENGINES.
	internal/test/tools/need-chromium.sh
	$(WITHSERVERS) -- go test -C $(BROWSER) $(PATIENT) .

# Not in make verify: npm fetches what makes the site.
verify-site: SITE_BASE = /
verify-site: site ## Make the site, and read every page of it in Chromium: links, search, narrow, dark.
	internal/test/tools/need-chromium.sh
	go test -C $(BROWSER) -count=1 -tags site ./site

verify-rules: ## Check the dashboard and the alerts of contrib/grafana by promtool.
	go test -C $(METRICS) -count=1 -tags promtool -run '^TestPromtool$$' .

verify-go: lint
	cd $(GORMGEN) && go run ./generate -check
	cd cmd/lockgen && LOCKSTEP_LONG=1 LOCKSTEP_ENGINES=none go test $(PATIENT) -run '$(WRITES)' .
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || \
		{ echo "Not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	@for module in $(MODULES); do \
		(cd $$module && go vet -tags cluster,proxies,promtool,site ./... && go mod tidy -diff) || \
		{ echo "go vet has failed in $$module, or its go.mod is not tidy: run go mod tidy there."; exit 1; }; \
	done
	@cd $(TUTORIAL) && go tool lockgen -check shopdb
	@cd cmd/lockgen && go run . -check ../../$(CHAOSDB)

lint: ## Run golangci-lint.
	$(GOLANGCI) run --allow-parallel-runners
	cd tests && $(GOLANGCI) run --allow-parallel-runners --build-tags cluster,proxies
	@for module in $(PARTS) examples bench $(CONTRIB) $(COMMANDS) $(GORMGEN) $(BROWSER) $(TUTORIAL) $(START) $(METRICS); do (cd $$module && $(GOLANGCI) run --allow-parallel-runners --build-tags site) || exit 1; done
	cd cmd/lockgen && $(GOLANGCI) run --allow-parallel-runners --config testdata/.golangci.yaml --build-tags tagged $$(find ./testdata -name lockstep.gen.go -exec dirname {} +)

licences: ## Check the licences of all dependencies.
	@for module in $(MODULES); do \
		found=$$(cd $$module && $(LICENCES) $$(case $$module in bench) echo "$(CHARTS)";; contrib/recipes) echo "$(REDIS)";; esac) ./... 2>&1) || { echo "$$found"; exit 1; }; \
	done

vulnerabilities: ## Look the dependencies up in VULNDB.
ifeq ($(VULNDB),none)
	@echo "The dependencies are not looked up for vulnerabilities: VULNDB is none."
else
	@for module in $(MODULES); do (cd $$module && $(VULNCHECK) -db $(VULNDB) ./...) || exit 1; done
endif
