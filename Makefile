# Where $(PYTHON) imports torch and triton, .venv sees them and gets only what is missing; elsewhere it is the pinned CPU set-up.
PYTHON ?= python3
PINNED ?=
LANE ?=
ARGS ?=
JOBS ?= 2
# What is imported is kept compiled, whatever the shell says: each process that a test starts saves 0.7 s.
unexport PYTHONDONTWRITEBYTECODE

# Evaluated by the recipes that need it alone: the path of the environment's Python, made where it is missing or out of date.
ENVIRONMENT = $(PYTHON) .ci/environment.py $(if $(LANE),--lane $(LANE),$(if $(PINNED),--pinned))
RUN = set -e; python="$$($(ENVIRONMENT))"; set -x; "$$python"

.DEFAULT_GOAL := help
.PHONY: help install compare gpu test test-slow lint wheel docs docs-serve clean

help:  ## this list
	@echo "Diptych: paged attention in Triton and in Helion, side by side"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  ARGS=...        further arguments, as in: make compare ARGS='--gpu mi300'; make test ARGS='-k mutant'"
	@echo "  PYTHON=...      the Python whose torch and triton are used (python3)"
	@echo "  PINNED=1        the pinned CPU set-up, whatever that Python has"
	@echo "  LANE=newest     the tests that a release of triton or helion may break, with the newest tested ones"
	@echo "  LANE=oldest     that the oldest tested triton compiles what is chosen"
	@echo "  LANE=newest-torch   the same with the newest torch, whose wheels bring 3 GB; before each release"

install:  ## the environment alone; `. .venv/bin/activate` then has diptych and diptych-check
	@$(ENVIRONMENT)

compare:  ## check every kernel, time it where there is a GPU, write a report to results/
	@$(RUN) -m compare.run $(ARGS)

# No environment and no installing: the Python that has torch, triton and helion beside the GPU's driver is the one to use.
gpu:  ## all that is measured on the GPU that is here, with PYTHON as it is; goes on where it stopped
	$(PYTHON) -m compare study everything $(ARGS)

# The longest of these takes 40 s on an idle core; one that waits for ever is to fail by name, not to take the rest with it.
test:  ## the tests of every day, on JOBS=2 processes
	@$(RUN) -m pytest -m "$(if $(filter oldest,$(LANE)),compiles,$(if $(LANE),lane,not slow))" -n $(JOBS) --dist loadgroup --timeout 900 $(ARGS)

test-slow:  ## the tests that take minutes, hours in all; ARGS='--part 1/8' is an eighth; then those of the newest torch
	@$(RUN) -m pytest -m slow -n $(JOBS) --dist loadgroup $(ARGS)
	@$(MAKE) --no-print-directory test LANE=newest-torch

lint:  ## ruff: style and format
	@$(RUN) -m ruff check . && "$$python" -m ruff format --check .

wheel:  ## dist/diptych-*.whl, for other environments: pip install dist/diptych-*.whl
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls -t dist/diptych-*.whl | head -n 1

# mkdocs and what it needs, in an environment of its own: the site is made of texts, and imports nothing of the project.
DOCS = .venv-docs/bin/mkdocs
EXTRA = import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])
export NO_MKDOCS_2_WARNING = 1

$(DOCS): pyproject.toml constraints-docs.txt
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --constraint constraints-docs.txt $$($(PYTHON) -c "$(EXTRA)")
	@touch $@

docs: $(DOCS)  ## the site in build/site, every link checked
	@$(DOCS) build --quiet
	@echo build/site/index.html

docs-serve: $(DOCS)  ## the site at localhost:8000, made again when a page changes
	@$(DOCS) serve

clean:  ## remove the environments and what the tools left; results/ stays
	rm -rf .venv .venv-pinned .venv-oldest .venv-newest .venv-newest-torch .venv-docs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
