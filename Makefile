# Needs Python 3.11 or newer and make; everything else is installed into .venv.
# CI runs `make lint types test test-all`. Extra arguments: make test ARGS="tests/unit -k loop"

LOCK     := requirements/dev.txt
EVALS    := requirements/evals.txt
TYPES    := requirements/types.txt
POSTGRES := requirements/postgres.txt
OBJECTS  := requirements/objects.txt
BROWSER  := requirements/browser.txt
DEPLOY   := requirements/deploy.txt
FUZZ     := requirements/fuzz.txt
PEERS_LOCK := requirements/peers.txt
VENV     := .venv
# Of a PYTHON that is named, .venv where that is its version or there is none; another version has a folder of its own.
ifneq ($(origin PYTHON), undefined)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ifeq ($(VERSION),)
$(error PYTHON=$(PYTHON) cannot be run; install it, or name another one: make setup PYTHON=/path/to/python3.11)
endif
THERE   := $(shell test ! -x .venv/bin/python || .venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV    := .venv$(if $(filter-out $(VERSION),$(THERE)),-$(VERSION))
endif
PY     := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
ARGS   ?=
PEERS  ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Some images set it: each of the hundreds of processes that the tests start would compile perdure anew, for 0.25 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup venv server demo test test-all cluster cluster-test lint types fmt check docs pictures bench dist lock outdated clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' Makefile

setup: venv server ## .venv with everything in it, and the Temporal dev server

venv: $(VENV)/.perdure ## .venv alone, without the dev server

# Two stamps: a changed lock installs packages, a changed pyproject only perdure's own metadata.
$(VENV)/.lock: $(LOCK) $(EVALS)
	@if [ -z "$(PYTHON)" ]; then \
		echo "perdure needs Python 3.11 or newer; found: $$(python3 --version 2>&1 || true)." >&2; \
		echo "Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
		echo "$(PYTHON) cannot create a virtual environment (on Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "installing $(LOCK) into $(VENV)"
	@$(PY) -m pip install --quiet --no-warn-conflicts --require-hashes -r $(LOCK)
	@$(PY) -m pip install --quiet --no-deps --require-hashes -r $(EVALS)
	@touch $@

$(VENV)/.perdure: $(VENV)/.lock pyproject.toml
	@$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Cheap when the binary is there, and not stamped: the cache lies outside this checkout and may be gone.
server: venv ## fetch the Temporal dev server once (cached under PERDURE_HOME)
	@$(VENV)/bin/perdure server install

demo: setup ## a run on real files, killed and resumed; make demo ARGS='--path DIR "question"'
	@$(VENV)/bin/perdure demo $(ARGS)

test: setup ## the tests, but for those marked slow or node: minutes
ifeq ($(strip $(ARGS)),)
	@$(PY) scripts/run_tests.py
else
	@$(VENV)/bin/pytest $(ARGS)
endif

# A lock and a stamp of its own: the binaries of a PostgreSQL server.
$(VENV)/.postgres: $(POSTGRES) $(VENV)/.lock
	@echo "installing $(POSTGRES) into $(VENV)"
	@$(PY) -m pip install --quiet --require-hashes -r $(POSTGRES)
	@touch $@

# What drives the system's Chromium in tests of the console; the browser itself is not fetched.
$(VENV)/.browser: $(BROWSER) $(VENV)/.lock
	@echo "installing $(BROWSER) into $(VENV)"
	@$(PY) -m pip install --quiet --require-hashes -r $(BROWSER)
	@touch $@

# An environment of its own: the server that speaks S3 needs other versions of what the lock has.
$(VENV)/.objects: $(OBJECTS) $(VENV)/.lock
	@echo "installing $(OBJECTS) into $(VENV)/objects"
	@$(PY) -m venv --clear $(VENV)/objects
	@$(VENV)/objects/bin/python -m pip install --quiet --require-hashes -r $(OBJECTS)
	@touch $@

# An environment of its own, which nothing but the tests of deploy/ uses.
$(VENV)/.deploy: $(DEPLOY) $(VENV)/.lock
	@echo "installing $(DEPLOY) into $(VENV)"
	@$(PY) -m venv --clear $(VENV)/deploy
	@$(VENV)/deploy/bin/python -m pip install --quiet --require-hashes -r $(DEPLOY)
	@touch $@

# An environment of its own: the program is a plugin of pytest, too, which would be loaded by each of its processes.
$(VENV)/.fuzz: $(FUZZ) $(VENV)/.lock
	@echo "installing $(FUZZ) into $(VENV)/fuzz"
	@$(PY) -m venv --clear $(VENV)/fuzz
	@$(VENV)/fuzz/bin/python -m pip install --quiet --require-hashes -r $(FUZZ)
	@touch $@

# An environment of its own: a peer of the bench needs another version of what the lock has.
$(VENV)/.peers: $(PEERS_LOCK) $(VENV)/.lock
	@echo "installing $(PEERS_LOCK) into $(VENV)/peers"
	@$(PY) -m venv --clear $(VENV)/peers
	@$(VENV)/peers/bin/python -m pip install --quiet --require-hashes -r $(PEERS_LOCK)
	@touch $@

# `make test test-all` runs no test twice: make makes a target once.
test-all: test $(VENV)/.postgres $(VENV)/.objects $(VENV)/.browser $(VENV)/.deploy $(VENV)/.fuzz ## all of them: large sizes, chaos, benchmarks, Node, PostgreSQL, S3
ifeq ($(strip $(ARGS)),)
	@$(PY) scripts/run_tests.py rest
endif

cluster: venv $(VENV)/.postgres ## a production Temporal server, PostgreSQL, three workers, two clients; needs Go
	@$(PY) -m tests.support.cluster

cluster-test: venv $(VENV)/.postgres ## kill and cut off what a cluster has; FULL=1 for the full size; needs Go
	@TEST_CLUSTER_FULL=$(FULL) PERDURE_REQUIRE_CLUSTER=1 $(VENV)/bin/pytest -s tests/acceptance/test_cluster.py $(ARGS)

lint: venv ## style, types, imports, lengths, determinism, small modules, words, API reference
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(PY) scripts/lint_lengths.py
	$(PY) scripts/lint_determinism.py
	$(PY) scripts/lint_cycles.py
	$(PY) scripts/lint_small_modules.py
	$(PY) scripts/lint_module_names.py
	$(PY) scripts/lint_rules.py
	$(PY) scripts/lint_words.py
	$(PY) scripts/lint_prose.py
	$(PY) scripts/reference.py --check
	$(PY) scripts/faults.py --check

# A lock and a stamp of its own: basedpyright brings Node along, which nothing else needs.
$(VENV)/.types: $(TYPES) $(VENV)/.lock
	@echo "installing $(TYPES) into $(VENV)"
	@$(PY) -m pip install --quiet --require-hashes -r $(TYPES)
	@touch $@

types: venv $(VENV)/.types ## mypy and basedpyright, strict, on tests/types and the examples
	$(PY) scripts/check_types.py

fmt: venv ## format, fix what ruff can fix, write the API reference
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(PY) scripts/reference.py
	$(PY) scripts/faults.py
	$(PY) scripts/lint_prose.py --write
	$(PY) scripts/lint_rules.py --write

check: lint test ## lint, then test: before a commit

# Without a network, and with every warning an error. The variable silences an advertisement of the theme.
docs: venv ## the documentation's site, into build/docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict $(ARGS)
	@echo "build/docs/index.html (the search needs a server: $(PY) -m http.server -d build/docs)"

pictures: setup ## draw docs/pictures, and record `perdure demo` for it
	@$(PY) scripts/pictures.py
	@$(PY) -m scripts.record_demo

bench: setup $(VENV)/.postgres $(if $(PEERS),$(VENV)/.peers) ## perdure against bare Temporal, as ratios; PEERS=1: other frameworks, too
	@$(PY) -m benchmarks $(ARGS)

# Times in both are fixed (or SOURCE_DATE_EPOCH), so the same files make the same bytes.
dist: venv ## a wheel and a source archive, into dist
	@rm -rf dist
	@$(PY) -m hatchling build -d dist

lock: venv ## resolve requirements/*.txt anew (ARGS=--upgrade to raise versions)
	@$(PY) scripts/locks.py $(ARGS)

outdated: venv ## what the package indexes have newer than the locks; changes nothing
	@$(PY) scripts/locks.py --outdated

clean: ## remove .venv, caches and build output
	rm -rf .venv .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
