# Each target sets up what it needs; `make` alone lists them.
# ARGS goes on to what is run: make test ARGS='-run TestA1 ./reconnect'

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench targets chaos fuzz tidy-check

FUZZTIME ?= 30s

# What is run is built first, and not run by go run, so that a signal reaches it.
BUILD = go build -buildvcs=false -o

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what tests and demo need and is missing: RabbitMQ, PostgreSQL, PgBouncer, a C compiler
	@scripts/setup broker database pooler compiler

demo: ## a narrated run of what the library does, on a real broker
	@scripts/setup --container-will-do broker database
	@$(BUILD) .build/tour ./examples/tour
	@.build/tour $(ARGS)

test: setup ## all tests, with the race detector, on every broker to be had
	@$(BUILD) .build/suite ./internal/testenv/suite
	@.build/suite test $(ARGS)

lint: ## gofmt, go vet, staticcheck; shellcheck where it is installed
	@scripts/setup
	@scripts/lint

bench: setup ## ours beside the driver used by hand, in under five minutes; the table goes to .build/bench.md
	@$(BUILD) .build/bench ./internal/testenv/bench
	@.build/bench -o .build/bench.md $(ARGS)

targets: setup ## the Go benchmarks: outbox and inbox beside other designs, and parts of the rest
	@$(BUILD) .build/suite ./internal/testenv/suite
	@.build/suite bench $(ARGS)

chaos: setup ## the long form of the chaos tests
	@$(BUILD) .build/suite ./internal/testenv/suite
	@.build/suite chaos $(ARGS)

fuzz: ## each fuzz target for FUZZTIME, 30s if not set
	@scripts/setup
	@scripts/fuzz $(FUZZTIME) $(ARGS)

tidy-check: ## whether go.mod and go.sum of every module are what go mod tidy makes of them
	@scripts/setup
	@scripts/tidy-check
