# Each target sets up what it needs; `make` alone lists them.
# ARGS goes on to what is run: make test ARGS='-run TestA1 ./reconnect'

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench chaos fuzz tidy-check

FUZZTIME ?= 30s

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what tests and demo need and is missing: RabbitMQ, PostgreSQL, a C compiler
	@scripts/setup broker database compiler

demo: .build/tour ## a narrated run of what the library does, on a real broker
	@scripts/setup --container-will-do broker
	@.build/tour $(ARGS)

test: setup .build/suite ## all tests, with the race detector, on every broker to be had
	@.build/suite test $(ARGS)

lint: ## gofmt, go vet, staticcheck; shellcheck where it is installed
	@scripts/lint

bench: setup .build/suite ## the benchmarks
	@.build/suite bench $(ARGS)

chaos: setup .build/suite ## the long form of the chaos tests
	@.build/suite chaos $(ARGS)

fuzz: ## each fuzz target for FUZZTIME, 30s if not set
	@scripts/fuzz $(FUZZTIME) $(ARGS)

tidy-check: ## whether go.mod and go.sum of every module are what go mod tidy makes of them
	@scripts/tidy-check

# Run as programs of their own, not by go run, so that a signal reaches them. Go knows what is up to date.
.PHONY: .build/tour .build/suite
.build/tour:
	@go build -buildvcs=false -o $@ ./examples/tour

.build/suite:
	@go build -buildvcs=false -o $@ ./internal/testenv/suite
