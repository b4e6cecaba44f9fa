# `make demo` shows how the package works, and `make test` checks it. Both create the virtual environment that they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Nothing is compiled during installation: it takes longer than unpacking, and most of the installed modules are never imported.
PIP_FLAGS := --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test check extras format docs bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[readers]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[dev]"
	@touch $@

demo: $(VENV)/.installed  ## build a knowledge base from examples/corpus and ask five questions
	$(BIN)/python examples/demo.py

test:  ## run all checks: lint, types, the installed package, tests
	$(MAKE) --no-print-directory -j 2 check extras
	$(BIN)/python -m pytest -n 2 --dist worksteal

extras: $(VENV)/.extras  ## check the wheel installed alone, and with each extra

$(VENV)/.extras: pyproject.toml constraints.txt tests/support/extras.py | $(BIN)/python
	rm -rf $(VENV)/extras
	$(BIN)/python tests/support/extras.py $(VENV)/extras
	rm -rf $(VENV)/extras
	@touch $@

check: $(VENV)/.installed-dev  ## check lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[readers,docs]"
	@touch $@

docs: $(VENV)/.installed-docs  ## build the documentation in build/docs, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[readers,bench]"
	@touch $@

bench: $(VENV)/.installed-bench  ## measure times and sizes on this machine, in about five minutes
	$(BIN)/kvpacket bench ttft --lengths 512,1024,2048,4096 --repeats 3
	$(BIN)/kvpacket bench decode --lengths 256,2048 --repeats 3
	$(BIN)/kvpacket bench build --lengths 256 --repeats 2
	$(BIN)/kvpacket bench store --sizes 1000,100000 --repeats 3
	$(BIN)/kvpacket bench load --clients 1,4 --questions 8

clean:
	rm -rf $(VENV) demo-kb bench-out build dist
