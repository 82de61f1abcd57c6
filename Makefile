# Everything a check-out can do. `make` alone prints the list.

GO        ?= go
KEEP      ?=
TESTFLAGS ?=
BENCHTIME ?= 2s
SELFTEST  := cmd/billingctl/internal/selftest
SHAPES    := sagas/stripegateway/shapes
ORACLE    := sagas/stripegateway/oracle
SEED      ?= 1
RUNS      ?= 300
CUSTOMERS ?= 2000
GOLANGCI  := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# Paths are relative and hold no spaces; the folder above may.
export GO

.DEFAULT_GOAL := help
.PHONY: help postgres build demo selftest year test shapes oracle race bench bench-proxy lint clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: postgres build ## bill 1,000 customers once, with two kill -9 in the middle (KEEP=1: leave it running)
	@bin/billingctl demo $(if $(filter-out 0,$(KEEP)),--keep)

selftest: postgres build ## 300 months that die everywhere, judged by Stripe's side (SEED=1 RUNS=300)
	@bin/billingctl selftest --seed $(SEED) --runs $(RUNS)

year: postgres ## 14 months of 2,000 customers, against a model of who owes what (SEED=1 CUSTOMERS=2000)
	YEAR_SEED=$(SEED) YEAR_CUSTOMERS=$(CUSTOMERS) $(GO) test -vet=off -count=1 -timeout=30m -v -run='^TestSeededYear$$' $(TESTFLAGS) ./sagas

# The selftest keeps a small machine busy by itself, so it runs alone.
test: postgres ## vet, then all tests on a real PostgreSQL, with -race where it works
	@race=$$(.ci/race.sh) && set -x && \
	$(GO) vet $$race ./... && \
	$(GO) test -vet=off -count=1 -timeout=20m -parallel=4 $$race $(TESTFLAGS) $$($(GO) list ./... | grep -v '/$(SELFTEST)$$') && \
	$(GO) test -vet=off -count=1 -timeout=20m $$race $(TESTFLAGS) ./$(SELFTEST)
	@$(MAKE) --no-print-directory shapes

shapes: ## what we send, checked by stripe-mock against Stripe's description of its API (part of make test)
	@race=$$(.ci/race.sh) && set -x && cd $(SHAPES) && $(GO) vet ./... && $(GO) test -vet=off -count=1 -timeout=5m $$race $(TESTFLAGS) ./...

oracle: postgres $(ORACLE)/node_modules/.package-lock.json ## nobody charged twice, asked of a Stripe that is not ours (needs npm)
	$(GO) test -tags=oracle -vet=off -count=1 -timeout=10m -run='^TestOracle' $(TESTFLAGS) ./sagas

$(ORACLE)/node_modules/.package-lock.json: $(ORACLE)/package-lock.json
	cd $(ORACLE) && npm ci --ignore-scripts --no-audit --no-fund && touch node_modules/.package-lock.json

race: postgres ## the tests of everything concurrent three times over, with -race
	$(GO) test -race -vet=off -count=3 -timeout=30m -parallel=4 $(TESTFLAGS) ./eventstore/... ./commands/... ./sagas/... ./projections/...

bench: postgres build ## the benchmarks, one package at a time, on a durable PostgreSQL, and the demo month
	$(GO) test -run='^$$' -bench=. -benchtime=$(BENCHTIME) -p=1 -timeout=60m $(TESTFLAGS) ./...
	bin/billingctl demo --rate-only
	bin/billingctl demo --rate-only --direct

build: ## the programs, into bin/
	$(GO) build -o bin/ ./cmd/...

bench-proxy: postgres ## what the spend proxy costs, beside the least that a proxy and two commits cost
	$(GO) test -run='^$$' -bench=. -benchtime=1x -p=1 -timeout=30m $(TESTFLAGS) ./cmd/spendproxy ./cmd/spendproxy/internal/ledger

lint: ## golangci-lint by .golangci.yml (fetched and built the first time)
	$(GO) run $(GOLANGCI) run

postgres: ## install PostgreSQL unless its binaries are found
	@.ci/postgres.sh

clean: ## remove what build made
	rm -rf bin
