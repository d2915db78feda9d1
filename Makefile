# The brokers that tests talk to come up by themselves; CONTRIBUTING.md tells how.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := test

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What to test or measure, and how long one package's tests may take.
PKG ?= ./...
BENCH ?= .
TIMEOUT ?= 12m

# A work tree that belongs to another user has no version to stamp.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

# With real brokers: a test that is skipped fails the run.
.PHONY: test
test:
	@env=$$(scripts/brokers up)
	eval "$$env"
	export REDELIVER_REQUIRE_BROKERS=1
	go test -race -count=1 -timeout $(TIMEOUT) -json $(PKG) | go run ./internal/skips -forbid

# Without any broker, naming the tests that are skipped for want of one.
.PHONY: unit
unit:
	@unset REDELIVER_POSTGRES_URL REDELIVER_RABBIT_URL REDELIVER_REQUIRE_BROKERS
	go test -race -timeout $(TIMEOUT) -json $(PKG) | go run ./internal/skips

.PHONY: bench
bench:
	@env=$$(scripts/brokers up)
	eval "$$env"
	export REDELIVER_REQUIRE_BROKERS=1
	go test -run '^$$' -bench '$(BENCH)' -benchmem -timeout $(TIMEOUT) $(PKG)

.PHONY: lint
lint:
	@unformatted=$$(gofmt -l .)
	if [ -n "$$unformatted" ]; then
		echo "gofmt -w these files:" $$unformatted >&2
		exit 1
	fi
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff

# Bring the brokers up and print the lines that tell tests where they are:
# eval "$(make brokers)".
.PHONY: brokers
brokers:
	@scripts/brokers up

# Stop the brokers that were started here; clean deletes their data too.
.PHONY: stop clean
stop clean:
	@scripts/brokers $@
