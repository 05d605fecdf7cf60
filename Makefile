# One command an intent; `make help` lists them. Needs Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHAOS ?= 0
IMAGES ?=
SEEDS ?= 20
STEPS ?= 400
# A file's tests share what they set up, so files are what is spread over processes.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo chaos test test-long simulate planted simulate-placement coverage lint types format lock clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(STAMP): pyproject.toml requirements.lock
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing locked packages into $(VENV) (the first time takes minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## run the main job on real photos; CHAOS=1 injects faults, IMAGES=DIR takes your own
	@$(BIN)/reembed local demo $(if $(filter 1,$(CHAOS)),--chaos) $(if $(IMAGES),--images '$(IMAGES)')

test: $(STAMP) ## lint, types, import rules and every test that takes less than minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(PYTEST) -m 'not long and not chaos'

test-long: $(STAMP) ## kills, chaos and the demo itself, minutes each
	$(PYTEST) -m long

simulate: $(STAMP) ## SEEDS=N runs of the real loops and SQL in virtual time, every promise checked at each step
	@$(BIN)/python -m tests.simulation --once-broken --table text --seeds $(SEEDS) --steps $(STEPS)

planted: $(STAMP) ## bugs planted one at a time in the product's code: the simulation has to find each
	@$(BIN)/python -m tests.simulation.planted

simulate-placement: $(STAMP) ## placement on capacity traces in virtual time, against bounds and baselines
	@$(BIN)/python -m tests.placement

chaos: $(STAMP) ## SIGKILL at every crash point, outages, a restored database; ends with one JSON line
	@$(BIN)/python -m tests.chaos -q

coverage: $(STAMP) ## share of each module's lines that runs in the demo with faults and the kill tests
	$(BIN)/python tests/run_coverage.py

lint: $(STAMP) ## lint, format check and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP) ## pyright strict on schema and controller/core
	$(BIN)/pyright

format: $(STAMP) ## reformat
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(STAMP) ## resolve requirements.lock anew
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --python-version 3.11 --no-annotate --no-header --upgrade -o requirements.lock

clean: ## remove the virtual environment and the state of the embedded stack
	rm -rf $(VENV) .reembed
