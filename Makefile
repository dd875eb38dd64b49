# Everything a person or a CI machine calls. Needs only Python 3.11 to 3.13 with venv, and make.
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
ARGS ?=
# Processes that share the tests; a file's tests stay together, as they share what they make.
JOBS ?= 2

BIN := $(VENV)/bin
# The name holds what the environment was made from, so a second `make setup` is instant and a changed file is not.
STAMP := $(VENV)/.made-$(shell { cat requirements.txt constraints-cpu.txt pyproject.toml; \
	echo '$(CURDIR) $(TORCH_INDEX)'; } | cksum | cut -d' ' -f1)
# A PYTHON that you name makes .venv anew when it is another version; without one, .venv keeps its own.
ifneq ($(origin PYTHON),file)
VERSION := import sys; print("%d.%d" % sys.version_info[:2])
ifneq ($(shell $(BIN)/python -c '$(VERSION)' 2>/dev/null),$(shell $(PYTHON) -c '$(VERSION)' 2>/dev/null))
.PHONY: $(STAMP)
endif
endif
# Nothing here asks a hub or opens a window; tests also keep to one thread per process.
OFFLINE := HF_HUB_OFFLINE=1 MPLBACKEND=Agg TOKENIZERS_PARALLELISM=false
QUIET := OMP_NUM_THREADS=1 $(OFFLINE)

.DEFAULT_GOAL := help
.PHONY: help setup demo smoke test test-unit test-hub test-colab test-gpu test-pythons check release versions budgets format notebooks repo clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv (PYTHON=python3.12, TORCH_INDEX=<PyTorch's CPU index> if you like)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo 'make setup needs Python 3.11, 3.12 or 3.13; $(PYTHON) is:' "$$($(PYTHON) --version 2>&1)"; \
	  echo 'Fix: name one, for instance: make setup PYTHON=python3.12'; exit 1; }
	@$(PYTHON) tools/make_venv.py $(VENV) --torch-index '$(TORCH_INDEX)'
	@rm -f $(VENV)/.made-* && touch $@

demo: setup ## train, evaluate and report a small clone detector on this machine's CPU
	@$(OFFLINE) $(BIN)/nbhelpers run notebooks/03_find_clones.ipynb -p preset=smoke $(ARGS)

smoke: demo ## the same as demo

test: setup ## every test that needs no GPU and no network (ARGS="-k name" chooses)
	@$(QUIET) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder nbhelpers tests $(ARGS)

test-unit: setup ## the quick ones of them, in about a minute
	@$(QUIET) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder nbhelpers tests -m 'not slow and not gpu and not network and not hub' $(ARGS)

test-hub: setup ## a whole run from gated repositories of a hub on this machine, and what it leaves
	@$(QUIET) $(BIN)/python -m pytest -q -m hub tests $(ARGS)

test-colab: setup ## every notebook on smoke with the versions of Colab's image and a stand-in for google.colab
	@$(QUIET) $(BIN)/python tools/colab.py $(ARGS)

test-gpu: setup ## the tests that need a GPU
	@$(OFFLINE) $(BIN)/python -m pytest -q -m gpu tests $(ARGS)

# Each in an environment of its own: .venv-3.11 and so on.
PYTHONS ?= python3.11 python3.12 python3.13
test-pythons: ## every test on each Python (PYTHONS="python3.12" chooses)
	@for python in $(PYTHONS); do \
	  $(MAKE) test PYTHON=$$python VENV=.venv-$${python##*python} || exit $$?; done

check: setup ## lint, format, import layers, notebook anatomy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/lint_code.py
	@$(BIN)/python tools/api_page.py check
	@$(BIN)/python tools/lint_notebook.py notebooks/*.ipynb
	@$(BIN)/python tools/repository.py check
	@$(QUIET) $(BIN)/python tools/budget_tables.py check

versions: setup ## predict measured runs with the oldest and newest transformers, peft and trl, and compare
	@$(QUIET) $(BIN)/python tools/versions.py $(ARGS)

budgets: setup ## simulate every preset on every card anew (ARGS="--job clones --workers 8 --seconds 600")
	@$(QUIET) $(BIN)/python tools/budget_tables.py build $(ARGS)

release: setup ## tag this version, build its wheel and run the demo from it (ARGS=--dry-run tags nothing)
	@$(BIN)/python tools/release.py $(ARGS)

format: setup ## let ruff mend style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

notebooks: setup ## run every notebook headless on smoke
	@for notebook in notebooks/0[0-3]*.ipynb; do \
	  $(OFFLINE) $(BIN)/nbhelpers run "$$notebook" -p preset=smoke $(ARGS) || exit $$?; done
	@$(OFFLINE) $(BIN)/nbhelpers run notebooks/04_compare_runs.ipynb

repo: setup ## write the repository's address into badges and notebooks: make repo OWNER=name [NAME=nbhelpers]
	@$(BIN)/python tools/repository.py set --owner '$(OWNER)' --name '$(or $(NAME),nbhelpers)'

clean: ## remove .venv and caches; runs/ stays
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
