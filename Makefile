# `make help` says what there is. ARGS goes to the command, PIP_ARGS to pip, PYTHON names the interpreter of .venv.
SHELL := bash
PY := .venv/bin/python
export OMP_NUM_THREADS := 1
# Hundreds of the tests' commands would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help train quick test test-long bench lint docs
.DEFAULT_GOAL := help

help:
	@echo 'make train [ARGS="parallel=holmes train.steps=200"]    train on the cluster `mixed`: emulated where there is no Slurm'
	@echo 'make quick     [ARGS="-k plan"]    the tests without namespaces, Slurm and packaging (aim: 3 minutes)'
	@echo 'make test      [ARGS="-k plan"]    the tests of every capability (aim: 10 minutes)'
	@echo 'make test-long [ARGS="-k plan"]    the rest: more layouts, another Slurm, more drawn input'
	@echo 'make bench     [ARGS=...]          the longer measurements'
	@echo 'make lint                          ruff and mypy'
	@echo 'make docs                          the documentation as a site, in build/docs; its links are checked'
	@echo
	@echo 'Each first makes .venv (again after a change of pyproject.toml or constraints.txt).'
	@echo 'PIP_ARGS="--extra-index-url URL" adds an index with builds of torch for CPUs alone; PYTHON=python3.12 names a Python.'

.venv/prepared: pyproject.toml constraints.txt
	@PIP_ARGS='$(PIP_ARGS)' PYTHON='$(PYTHON)' tools/prepare.sh

train: .venv/prepared
	@$(PY) -m holmes_hpc.train +cluster=mixed $(ARGS)

# Many tests wait more than they compute, so there are three of them at once for each core, up to twelve. Those that are
# left are shared out again at the end: no long file holds up the rest.
JOBS := $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 4 ? 3 * cores : 12)))
PYTEST := $(PY) -m pytest -n $(JOBS) --dist worksteal

quick: .venv/prepared
	@$(PYTEST) -m 'not (emulated or slurm or packaging or long or bench)' $(ARGS)

test: .venv/prepared
	@$(PYTEST) -m 'not (long or bench)' $(ARGS)

test-long: .venv/prepared
	@$(PYTEST) -m '(long or hypothesis) and not bench' --examples-times 6 $(ARGS)

bench: .venv/prepared
	@$(PY) -m benchmarks $(ARGS)

lint: .venv/prepared
	@$(PY) -m ruff check .
	@$(PY) -m mypy

# Sphinx and what it needs are in an environment of their own: training and tests need none of it. Links inside of the site
# are errors where they lead nowhere; those to other sites are not looked at.
docs: .venv/prepared
	@[ -x build/docs/venv/bin/sphinx-build ] || { $(PY) -m venv build/docs/venv && \
		build/docs/venv/bin/python -m pip install -q --disable-pip-version-check 'sphinx>=7.3' 'myst-parser>=3' $(PIP_ARGS); }
	@build/docs/venv/bin/python -m sphinx -q -W --keep-going -E docs build/docs/html
	@echo 'build/docs/html/index.html'
