# Every target does its own set-up: a fresh machine needs Python 3.11 or newer, and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := actors supervisor tests benchmarks examples

# Tests start thousands of processes: compiled once is a third of a second saved for each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: nightly simulate soak demo test scale lint types docs machines http-api telemetry conformance page-images bench bench-short bench-peers bench-recovery bench-scheduler bench-work bench-felt bench-http bench-telemetry bench-fleet bench-soak bench-growth fuzz api-check crash test-agents agents leftovers mutants clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/ready  ## A short, real run: sessions, aborts, an urgent message, a crash, a hang
	$(BIN)/supervisor demo

test: $(VENV)/ready  ## The suite; a sixth of the tests that start programs, another with each commit (ALL=1: all); JOBS (3) at once
	$(BIN)/python -m pytest -n $(or $(JOBS),3) --dist worksteal $(if $(ALL),,--share $(or $(shell git rev-list --count HEAD 2>/dev/null),0))

nightly: $(VENV)/ready  ## What does not fit into every run: all tests on both backends, and the long forms of the checks
	$(BIN)/python -m pytest -n $(or $(JOBS),3) --dist worksteal --both-backends
	$(MAKE) scale soak fuzz crash api-check

scale: $(VENV)/ready  ## Ten thousand sessions, and two thousand levels: they all end; each end in 1,000 runs has one root
	$(BIN)/python -m pytest tests/integration/test_scale.py tests/integration/test_why_everywhere.py --sessions 10000 --levels 2000 --runs 25

lint: $(VENV)/ready  ## Style, and the typed surface
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/ready  ## mypy --strict over the packages and all examples, pyright over the API as a user sees it
	$(BIN)/mypy
	$(BIN)/python -m tests.snippets build/snippets
	$(BIN)/mypy build/snippets
	$(BIN)/pyright

machines: $(VENV)/ready  ## The pages that are generated from the tables of the lifecycles
	$(BIN)/python -m supervisor.cli.machines docs/reference/machines

http-api: $(VENV)/ready  ## The page that is generated from the OpenAPI document of the HTTP API
	$(BIN)/python -m supervisor.control.http.reference docs/reference/http-api/index.md

telemetry: $(VENV)/ready  ## The page that is generated from the tables of the metrics and spans
	$(BIN)/python -m supervisor.telemetry.reference docs/reference/telemetry-names.md

conformance: $(VENV)/ready  ## The page that says what shows each statement of the specification
	$(BIN)/python -m tests.conformance

page-images: $(VENV)/ready  ## The pictures of the page in docs/images, of a run with scripted agents; needs chromium
	$(BIN)/python -m tests.page.make_images

$(VENV)/docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/docs machines http-api telemetry conformance  ## The documentation as HTML in build/docs; a warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs auto docs build/docs

simulate: $(VENV)/ready  ## Short: the golden runs are what they were, and a few new seeds violate nothing
	$(BIN)/python -m tests.verification prove --golden
	$(BIN)/python -m tests.verification soak --seeds 100

soak: $(VENV)/ready  ## Long: many seeds that reach everything, an abort before every step, and one run per seed
	$(BIN)/python -m tests.verification soak --seeds 10000 --must-reach all
	$(BIN)/python -m tests.verification sweep
	$(BIN)/python -m tests.verification sweep --crash --every 10
	$(BIN)/python -m tests.verification prove --seeds 50

fuzz: $(VENV)/ready  ## INPUTS (1000000) malformed inputs: nothing but declared errors; what breaks is kept in the corpus
	$(BIN)/python -m tests.fuzz --inputs $(or $(INPUTS),1000000)

build/schemathesis: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --target $@ schemathesis
	touch $@

api-check: build/schemathesis  ## Every route of the HTTP API with EXAMPLES (100) made-up requests: the document is kept to
	$(BIN)/python -m tests.api_check --examples $(or $(EXAMPLES),100)

crash: $(VENV)/ready  ## Kill the real program CYCLES times (100) and compare what it promised with what is there
	$(BIN)/python -m tests.crash --cycles $(or $(CYCLES),100)
	$(BIN)/python -m tests.crash.writer --cycles $(or $(CYCLES),100)0
	$(BIN)/python -m tests.crash.writer --plant early-acknowledgement
	$(BIN)/python -m tests.crash.plans --kills $$(( $(or $(CYCLES),100) / 5 )) --tasks 200
	$(BIN)/python -m tests.crash.daemon --kills $$(( $(or $(CYCLES),100) / 5 )) --tasks 40
	$(BIN)/python -m tests.crash.one_truth --kills $(or $(CYCLES),100)
	$(BIN)/python -m tests.crash.workstream --cycles $$(( $(or $(CYCLES),100) / 50 ))
	$(BIN)/python -m tests.crash.git_steps --calls 4 --rounds $$(( $(or $(CYCLES),100) / 50 ))

test-agents: $(VENV)/ready  ## Real agents (AGENTS, by default six), pinned and offline, through every cell of a table
	$(BIN)/python -m tests.real_agents $(AGENTS)

agents: $(VENV)/ready  ## Measure agents (AGENTS, by default all of the catalogue) with the probe; writes catalogue and docs
	$(BIN)/python -m tests.real_agents.measure $(AGENTS)

mutants: $(VENV)/ready  ## The mutants that tests/mutation/guard.tsv calls killed: they still are (an hour)
	$(BIN)/python -m tests.mutation verify

bench: $(VENV)/ready  ## The kernel, aborts, the journal, processes; ratios against what is measured in the same run
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.abort
	$(BIN)/python -m benchmarks.journal
	$(BIN)/python -m benchmarks.processes

leftovers: $(VENV)/ready  ## What process managers of PyPI leave alive, and what this runtime does; writes the table of the docs
	test -d .tools || $(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet --disable-pip-version-check supervisor circus honcho distributed
	$(BIN)/python -m benchmarks.leftovers --tools .tools --write

bench-short: $(VENV)/ready  ## Each benchmark once, at its smallest sizes, without aims: it shows only that they all run
	$(BIN)/python -m benchmarks --short
	$(BIN)/python -m benchmarks.abort --short
	$(BIN)/python -m benchmarks.journal --short
	$(BIN)/python -m benchmarks.processes --short
	$(BIN)/python -m benchmarks.leftovers --short
	$(BIN)/python -m benchmarks.peers --short
	$(BIN)/python -m benchmarks.recovery --short
	$(BIN)/python -m benchmarks.scheduler --short
	$(BIN)/python -m benchmarks.work --short
	$(BIN)/python -m benchmarks.felt --short
	$(BIN)/python -m benchmarks.http --short
	$(BIN)/python -m benchmarks.soak --short
	$(BIN)/python -m benchmarks.growth --short
	$(BIN)/python -m benchmarks.telemetry --short
	$(BIN)/python -m benchmarks.fleet --short

$(VENV)/peers: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

bench-peers: $(VENV)/peers  ## The same with other actor frameworks installed, and a table of them all
	$(BIN)/python -m benchmarks.peers
	$(MAKE) bench

bench-recovery: $(VENV)/ready  ## Opening and recovering a journal of a million records; commits while it is compacted
	$(BIN)/python -m benchmarks.recovery --compaction

bench-scheduler: $(VENV)/ready  ## Claims per second, and what a task costs, as the backlog grows from 100 to 100,000
	$(BIN)/python -m benchmarks.scheduler

bench-work: $(VENV)/ready  ## Claims through the journal, `supervisor run`, memory of queued tasks; AGAINST=CHECKOUT compares two
	$(BIN)/python -m benchmarks.work $(if $(AGAINST),--against $(AGAINST))

bench-felt: $(VENV)/ready  ## A task, a worktree, a question about a long journal, an import, beside make, DBOS, git; AGAINST=CHECKOUT
	$(BIN)/python -m benchmarks.felt $(if $(AGAINST),--against $(AGAINST))

bench-http: $(VENV)/ready  ## Event streams with 200 readers, aborts beside them, the tree of 2,000 sessions against `supervisor ps`
	$(BIN)/python -m benchmarks.http

bench-telemetry: $(VENV)/ready  ## Cost of a record with nothing configured, with metrics, and with traces
	$(BIN)/python -m benchmarks.telemetry

bench-fleet: $(VENV)/ready  ## Cost of a record that is mirrored into a fleet, beside one that is not
	$(BIN)/python -m benchmarks.fleet

bench-soak: $(VENV)/ready  ## MINUTES (30) of LOAD (sessions, or runs through a daemon) that comes and goes: the process stays its size
	$(BIN)/python -m benchmarks.soak --load $(or $(LOAD),sessions) --minutes $(or $(MINUTES),30) $(if $(RATE),--rate $(RATE))

bench-growth: $(VENV)/peers  ## Growth curves from 100 to 100,000 actors, as CSV and PNG in benchmarks/results
	$(BIN)/python -m benchmarks.growth

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
