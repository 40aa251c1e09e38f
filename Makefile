# `make help` lists what there is. CI calls `make check` and `make test` and nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
BIN := .venv/bin
UV_VERSION := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements.lock)
TORCH_VERSION := 2.13.0
INSTALLED := .venv/.installed

export VAR_DIR ?= $(CURDIR)/var
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# As pip does: trust what this machine trusts, a company's proxy included.
export UV_SYSTEM_CERTS := 1
# Without its cache of compiled modules every process that starts compiles thousands of files again, 15 s each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*##  */\1\t/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: setup
setup: $(INSTALLED)  ## Make .venv and install what requirements.lock pins

$(INSTALLED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed, and $(PYTHON) is not; name one with PYTHON=/path/to/python3.11 make setup"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing python3-venv"; apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null; \
	  else echo "Python's venv module is missing; install it with: sudo apt-get install python3-venv"; exit 1; fi; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing the pinned dependencies into .venv (some minutes the first time)"
	@$(BIN)/uv --version 2>/dev/null | grep -q '^uv $(UV_VERSION) ' || $(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@# On its own and by pip: the CPU and the GPU build share one version, and which one is found is the machine's choice.
	@$(BIN)/python -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch").split("+")[0] != "$(TORCH_VERSION)")' 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet torch==$(TORCH_VERSION)
	@touch $@

.PHONY: up down
up: setup  ## Run the whole product; Ctrl-C stops it. PORT, VAR_DIR, DATABASE_URL, VALKEY_URL, ENGINE_ADDRESS steer it
	@exec $(BIN)/python -m config.local.up
down:  ## Stop the product that another shell runs
	@exec $(BIN)/python -m config.local.down

.PHONY: status demo-key operator
status: setup  ## Show the programs of the running product
	@exec $(BIN)/python -m config.local.ctl status
demo-key: setup  ## Print an API key of the demo organization (the product must run)
	@exec $(BIN)/python -m config.local.ctl manage demo_key
operator: setup  ## Make an operator: make operator EMAIL=you@example.com
	@test -n "$(EMAIL)" || { echo "Say who: make operator EMAIL=you@example.com"; exit 2; }
	@exec $(BIN)/python -m config.local.ctl manage operator --email "$(EMAIL)"

.PHONY: check
check: setup  ## Format, lint, types, import contracts, migrations, stubs, lock, forbidden strings
	@exec .ci/check

.PHONY: test test-gpu golden
test: setup  ## Run every test; PYTEST_ARGS adds options
	@exec .ci/test $(PYTEST_ARGS)
test-gpu:  ## Run the tests that need an NVIDIA GPU, with the Python that is active
	@# Options of plugins that only the whole product's tests need are unknown there.
	@exec python3 -m pytest -W ignore::pytest.PytestConfigWarning --confcutdir tests/kernels tests/gpu tests/kernels
golden: setup  ## Rewrite the golden files; review the difference before committing it
	@UPDATE_GOLDEN=1 .ci/test -k golden

.PHONY: protos migrations lock assets bench bench-gpu drill
protos: setup  ## Generate the gRPC stubs again
	@$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. inference_grpc/protos/v1/inference.proto
migrations: setup  ## Write the migrations that the models ask for
	@source .ci/placeholders; DJANGO_SETTINGS_MODULE=config.settings_test exec $(BIN)/python -W ignore manage.py makemigrations
messages: setup  ## Collect the texts of pages into portal/locale and compile what is translated (needs gettext)
	@source .ci/placeholders; export DJANGO_SETTINGS_MODULE=config.settings_test; \
	  $(BIN)/python -W ignore manage.py makemessages -l de --no-obsolete --no-wrap --add-location file --ignore .venv --ignore var; \
	  $(BIN)/python -W ignore manage.py makemessages -d djangojs -l de --no-obsolete --no-wrap --add-location file \
	    --ignore .venv --ignore var --ignore vendor --ignore node_modules; \
	  exec $(BIN)/python -W ignore manage.py compilemessages -l de --ignore .venv
lock: setup  ## Resolve pyproject.toml again into requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --quiet --all-extras --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" -o requirements.lock
assets:  ## Build static/css, and copy released scripts, styles and icons into static/vendor (needs Node and npm; the result is committed)
	@cd config/assets && npm ci --silent && npm run --silent build
drill: setup  ## Kill the product's parts under 100,000 calls and compare every account; ARGS="--calls 3000" for a small one
	@exec $(BIN)/python -m benchmarks.drill $(ARGS)
bench-gpu:  ## Prove and measure the GPU paths, with the Python that is active; ARGS="--only steps" for a part
	@exec python3 -m benchmarks.gpu $(ARGS)
bench: setup  ## Run the benchmarks; NAMES="money gateway" picks some
	@exec $(BIN)/python -m benchmarks $(NAMES)
