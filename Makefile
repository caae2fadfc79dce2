# Every target makes .venv first when it is missing or pyproject.toml changed.
# Variables: PYTHON (the interpreter that .venv is made with), ARGS (passed on to the command),
# WORKERS (processes that share the tests).
# Modules are compiled to bytecode when they are first imported: most of what is installed never is.
# What every training imports is at once, and kept whatever the shell says: to compile torch anew is
# most of a short program's time.

export PYTHONDONTWRITEBYTECODE :=
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
INSTALLED := $(VENV)/.installed
DOCS := NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet
ARGS ?=
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install train test test-slow check docs format bench build clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(INSTALLED): pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): some minutes, several gigabytes."
	$(RUN) pip install --quiet --no-compile --editable '.[all,dev]'
	$(VENV)/bin/python -c 'import rl_training.cli.commands, rl_training.recipes.ppg, torchrl.collectors'
	@touch $@
	@echo "Done: $(VENV)/bin/rl-training, or 'source $(VENV)/bin/activate' and then 'rl-training'."

install: $(INSTALLED) ## make .venv with everything in it

train: $(INSTALLED) ## train PPG on CartPole
	$(RUN) rl_training.recipes.ppg --config zoo/ppg_cartpole.yaml $(ARGS)

test: $(INSTALLED) ## run the tests
	$(RUN) pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

test-slow: $(INSTALLED) ## run the learning checks: minutes each
	$(RUN) pytest -m slow $(ARGS)

check: $(INSTALLED) ## formatting, lint, types, import layers, docs
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports
	$(DOCS)

docs: $(INSTALLED) ## build the site of docs/ in site/
	$(DOCS)

format: $(INSTALLED) ## format and mend what can be mended
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

bench: $(INSTALLED) ## measure speed next to Stable-Baselines3
	$(RUN) tests.benchmarks.speed $(ARGS)

build: $(INSTALLED) ## make the wheel and the source archive in dist/
	$(RUN) build $(ARGS)

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
