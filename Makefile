# `make` alone lists the targets. Every recipe is one thin line over Python.

VENV   := .venv/bin/python
PYTHON ?= $(shell test -x $(VENV) && echo $(VENV) || echo python3)
TREE   ?= $(if $(wildcard solution),solution,starter)
YOURS   = $(if $(filter file,$(origin TREE)),starter,$(TREE))
DIR    ?= tests/vectors
JOBS   ?= 2
SLOW   ?= turn

# One thread per process: small tensors gain nothing from more, and timings stay comparable.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup check watch run hint reset grade scale notebook notebooks test starter release vectors verify bench format clean mutants calibrate

help:
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## build .venv and install the tested versions (PYTHON=python3.12 chooses another)
	@command -v $(PYTHON) >/dev/null || { echo "setup: no $(PYTHON) here; Python 3.11 or newer is needed" >&2; exit 1; }
	@$(PYTHON) -I grader/setup_environment.py

check: setup ## look at the parts, quickly (TASK=2 or TASK=2.1 looks at one, TREE=path elsewhere)
	@$(VENV) -m grader check $(TASK) $(if $(filter file,$(origin TREE)),,--tree '$(TREE)')

watch: setup ## check again whenever a file is saved (TASK=2 looks at one, TREE=path elsewhere)
	@$(VENV) -m grader watch $(TASK) $(if $(filter file,$(origin TREE)),,--tree '$(TREE)')

run: setup ## call your function on a small example, in your own process (TASK=2.1)
	@$(VENV) $(firstword $(wildcard examples.py) handout/examples.py) $(TASK) --tree '$(YOURS)'

hint: setup ## show the next hint of a task (TASK=2.1)
	@$(VENV) -m grader hint $(TASK) --tree '$(YOURS)'

reset: setup ## put a task back as it was handed out; your version is kept (TASK=2.1)
	@$(VENV) -m grader reset $(TASK) --tree '$(YOURS)'

grade: setup ## grade a tree, folder, .zip or .tar.gz into reports/<name>/ (TREE=starter)
	@$(VENV) -m grader grade '$(TREE)'

scale: setup ## grade, then train the larger size if every gate passed
	@$(VENV) -m grader grade '$(TREE)' --scale

notebook: setup ## open the notebooks in JupyterLab (fetched at the first use: some 220 MB)
	@$(VENV) -m grader notebook

notebooks: setup ## run the notebooks with a tree; pages to read go to reports/notebooks/
	@$(VENV) -m grader notebooks --tree '$(TREE)'

test: setup ## run lint, types and the test suite (SLOW=1/1 runs every slow test, not a quarter)
	@$(VENV) -m ruff check
	@$(VENV) -m ruff format --check
	@$(VENV) -m mypy
	@$(VENV) -m pytest -q -n $(JOBS) --dist worksteal --slow-share $(SLOW)

coverage: setup ## run the quick tests and say which lines of the grader none of them runs
	@$(VENV) -m coverage run -m pytest -q -n $(JOBS) -m 'not slow'
	@$(VENV) -m coverage combine --quiet
	@$(VENV) -m coverage report
.PHONY: coverage

starter: setup ## generate starter/ from solution/
	@$(VENV) -m grader.upkeep.release starter

release: setup ## build what students get: dist/transformer-lab.zip
	@$(VENV) -m grader release --out dist

vectors: setup ## compare with the tensors in a folder (DIR=tests/vectors)
	@$(VENV) tests/vector_cases.py '$(DIR)'

verify: setup ## grade the known wrong, odd and hostile submissions
	@$(VENV) -m grader verify --write-docs

mutants: setup ## mutate the solution's task bodies; list the mutants that no check sees
	@$(VENV) -m grader mutants --write-docs

calibrate: setup ## measure how far every threshold is from right and wrong
	@$(VENV) -m grader calibrate --write-docs

bench: setup ## measure speed and memory, write docs/bench.md (CHECK=1 fails on a missed target)
	@$(VENV) -m bench $(if $(CHECK),--check)

format: setup ## format the code and fix what lint can fix
	@$(VENV) -m ruff check --fix
	@$(VENV) -m ruff format

clean: ## remove reports, dist and caches; .venv stays
	@rm -rf reports dist .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
