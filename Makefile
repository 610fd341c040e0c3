# Odradek. `make start` runs a broker, `make demo` a pipeline on it, `make test` all tests, `make test-quick` those that
# start no process, `make dist` builds a wheel and a single-file executable; each installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_WORKERS ?= 5
QUICK_WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist loadgroup --no-loadscope-reorder

.PHONY: start demo test test-quick parity check bench simulate docs dist install install-test jars clean

# Tests start some thousand Python processes; without compiled modules each would compile all of its imports.
unexport PYTHONDONTWRITEBYTECODE

start: install
	$(BIN)/odradek start

demo: $(VENV)/installed-demo
	@$(BIN)/python -m demo

# Before all processes begin, one compiles the tests, and another puts Spark's classes into an archive.
test: install-test jars
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null & $(BIN)/python -m spark_it.tests.quick_java; wait
	$(PYTEST) --durations 25

test-quick: install-test
	$(BIN)/python -m pytest --numprocesses $(QUICK_WORKERS) --dist loadgroup --no-loadscope-reorder --quick

parity: install-test jars
	ODRADEK_COMPAT_BACKEND=kafka $(PYTEST) -m side_by_side

check: install-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

simulate: install
	$(BIN)/python -m odradek.simulation --brokers $(or $(BROKERS),1) \
		$(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),200))

bench: install-test jars
	$(BIN)/python -m benchmarks

# The documentation as a site in build/docs, which can be read without a web server; links and anchors are checked.
docs: $(VENV)/installed-docs
	$(BIN)/mkdocs build --quiet
	@echo "build/docs/index.html is the documentation"

# The wheel runs on any Python from 3.11 on. The executable contains compiled modules for this version and this platform; with
# -S it does not use the packages of the system, which may be too old for the ones in it.
dist: $(VENV)/installed-dist
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build --quiet --wheel --outdir dist .
	$(BIN)/python -m shiv --quiet --reproducible --extend-pythonpath --compile-pyc --preamble packaging/preamble.py \
		--console-script odradek \
		--python "/usr/bin/env -S $$($(BIN)/python -c 'import sys; print("python%d.%d -S" % sys.version_info[:2])')" \
		--output-file dist/odradek "$$(echo dist/odradek-*.whl)[console]"
	@ls -lh dist

jars: install-test
	$(BIN)/python -m compat_tests.apache_kafka.jars

install: $(VENV)/installed

install-test: $(VENV)/installed-test

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Odradek needs Python 3.11 or later; $(PYTHON) is older. Install one and say: make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed requirements-test.txt
	$(BIN)/python -m pip install --quiet --no-compile --requirement requirements-test.txt
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed requirements-docs.txt
	$(BIN)/python -m pip install --quiet --requirement requirements-docs.txt
	@touch $@

$(VENV)/installed-dist: $(VENV)/installed requirements-dist.txt
	$(BIN)/python -m pip install --quiet --requirement requirements-dist.txt
	@touch $@

# Spark and the database client as they are tried, and what else the pipelines need.
$(VENV)/installed-demo: $(VENV)/installed requirements-test.txt
	@grep -E '^(pyspark|psycopg)' requirements-test.txt | xargs $(BIN)/python -m pip install --quiet --editable '.[spark]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
