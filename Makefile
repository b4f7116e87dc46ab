# Each target makes .venv and installs what it needs; a second call skips what is there.
# Needs Python >= 3.10 with pip, and make. `make PYTHON=python3.12 test` chooses the interpreter.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt
HOROVOD := .venv-horovod/bin
HOROVOD_PIP := $(HOROVOD)/python -m pip --disable-pip-version-check install -qq -c constraints.txt
XLA := .venv-xla/bin
XLA_PIP := $(XLA)/python -m pip --disable-pip-version-check install -qq -c constraints-xla.txt
# What of the core's tests says something of another torch; all of them take too long.
XLA_CORE_TESTS := $(addprefix tests/core/,collectives precision) $(filter-out %/test_preemption.py,$(wildcard plugins/trainer/tests/test_*.py)) \
	$(patsubst %,tests/core/strategies/test_%.py,optimizer_state prepared process_group) tests/core/resolve/test_run.py \
	$(patsubst %,plugins/sharding/tests/test_%.py,buckets equal_buffers meshes torch_private traffic whole_tensors) \
	$(patsubst %,plugins/checkpoint/tests/test_%.py,directory ranks safetensors_file safetensors_storage split_models) \
	$(patsubst %,tests/core/data/test_%.py,sources train) \
	tests/integration/test_runtime.py
# PART=1/3 of a target's tests, by their names.
PARTLY := $(if $(PART),--part $(PART))
XLA_STRATEGIES := single_xla xla xla_fsdp
PROJECTS := pyproject.toml core/pyproject.toml $(sort $(wildcard plugins/*/pyproject.toml))
EDITABLE := $(patsubst %/pyproject.toml,-e %,$(filter-out pyproject.toml,$(PROJECTS)))

.DEFAULT_GOAL := help
.PHONY: help demo test test-long soak test-etcd test-kubernetes test-ray test-libraries test-deepspeed test-horovod test-sim test-sim-short test-wheels test-xla lint format docs hooks coming-from moving picture report-picture sdk facade packages plugins walks differ dist conformance conformance-horovod conformance-xla parity parity-deepspeed compositions hands-on portability test-places fuzz mutate mutate-sim planted corpus corpus-clean bench bench-horovod bench-xla gpu gpu-bundle clean

help:
	@echo "make demo    train examples/digits.py in two processes"
	@echo "make test    run the tests, three at a time (others by WORKERS=8)"
	@echo "make test-long run those that take tens of seconds each: whole programs, machines that come and go, more ranks (a third of them by PART=1/3, as of the engines' tests)"
	@echo "make soak    kill, stop and hang ranks over whole trainings, lose machines, save thousands of times (hours)"
	@echo "make test-etcd let the launcher die that a run began with, whose rendezvous is in a real etcd"
	@echo "make test-kubernetes run all tests of stratagem-kubernetes, with the models of the package kubernetes (126 MB)"
	@echo "make test-ray run stratagem-ray's tests with Ray (700 MB), which goes into a folder of its own"
	@echo "make test-libraries run the tests beside MLflow, Comet, trackio, Aim, webdataset, hydra, accelerate, PEFT and datasets, which go into a folder of their own"
	@echo "make test-deepspeed run all tests on the DeepSpeed engine (minutes)"
	@echo "make test-horovod build Horovod once (10 minutes), and run all tests on it, also under MPI where that is installed"
	@echo "make test-sim build the asynchronous device of stratagem-sim, and run its tests"
	@echo "make test-xla run stratagem-xla's tests, and some of the core's, on torch 2.9 with torch_xla (several GB)"
	@echo "make lint    ruff, mypy --strict and import-linter"
	@echo "make format  let ruff fix what it can"
	@echo "make docs    build the documentation into site/"
	@echo "make hooks   write docs/hooks.md again from the hookspecs"
	@echo "make coming-from write docs/coming-from-*.md again from the table of names"
	@echo "make moving  run programs written for Lightning (DIR=folder) under it and under stratagem-lightning, and compare"
	@echo "make picture draw docs/assets/run.svg again from a run"
	@echo "make report-picture draw docs/guides/report.png again, in Chromium"
	@echo "make sdk     write docs/sdk.md and the list of all public names again"
	@echo "make facade  write the stubs of stratagem for type checkers, and the index of plugins, again"
	@echo "make packages write the lists of distributions in pyproject.toml, the release workflow, README and mkdocs.yml from packages.toml"
	@echo "make plugins write docs/plugins.md again from the distributions' metadata"
	@echo "make walks   write docs/walks.md again from traced runs, and print how long each walk is"
	@echo "make dist    build every distribution into dist/ and check it"
	@echo "make test-wheels build and install the wheels in a new environment, and try README's commands and programs there"
	@echo "make conformance try every strategy (long; only NAMES=\"a b\", or new checks with NEW=1), and write docs/conformance.md again"
	@echo "make conformance-horovod the same for strategy horovod, with Horovod"
	@echo "make conformance-xla the same for strategies on XLA, with torch_xla"
	@echo "make parity  hold every strategy against plain PyTorch loops (long; ONLY=\"ddp fsdp\": some), and write docs/parity.md"
	@echo "make parity-deepspeed the same for the DeepSpeed engine (longer)"
	@echo "make hands-on hold own loops under strategies against plain PyTorch (only STRATEGIES=\"ddp fsdp\", DEVICES=\"2 3\"), and write docs/parity.md"
	@echo "make compositions compare every pair and triple of axes with one process (some with ONLY=shard+tensor), and write docs/compositions.md"
	@echo "make portability load each strategy's checkpoint under each other (long; only pairs not tried yet with NEW=1), and write docs/portability.md"
	@echo "make test-places run jobs on a real Slurm, whose Debian packages are fetched and not installed (long)"
	@echo "make fuzz    call the command line with nonsense for ten minutes (others by SECONDS=60, from another seed by SEED=1)"
	@echo "make differ  hold own loops that a seed draws against the same loops in one process for ten minutes (SECONDS=60, SEED=1, STRATEGIES=\"ddp fsdp\")"
	@echo "make mutate  change one place of the code at a time and see whether its tests notice (ONLY=\"data loops\", SAMPLE=25, SEED=7: some)"
	@echo "make mutate-sim  remove one wait for a device at a time, and see whether tests on the simulated one notice"
	@echo "make corpus  run programs with bugs of public issues, let stratagem diff find them, and write docs/corpus.md (ONLY=on_torch: some)"
	@echo "make corpus-clean train 50 right programs under 13 strategies, count what stratagem diff says against them, and write docs/corpus.md (MODELS=\"TwoLayers Tied\", STRATEGIES=\"ddp fsdp\": some)"
	@echo "make planted count the planted faults that the kit catches (half an hour; NAMES: these alone)"
	@echo "make bench   measure overhead per step, time to start, throughput and memory"
	@echo "make bench-horovod the same for strategy horovod beside Horovod by hand"
	@echo "make bench-xla the same for strategies on XLA, with torch_xla"
	@echo "make gpu     check and measure on a GPU in nine minutes, and write docs/gpu.md (ACCELERATOR=cpu rehearses it, and writes .gpu/rehearsal.json alone)"
	@echo "make gpu-bundle put all but torch into .gpu/site, for a machine with a GPU and no network (PYTHON_VERSION=3.12)"
	@echo "make clean   remove .venv and all that was built"

demo: .venv/.ready-to-run
	@$(BIN)/stratagem fit examples/digits.py:Digits --strategy ddp --accelerator cpu --devices 2 --max-epochs 10 --set trainer.log_every_n_steps=5

# Most of their time tests wait for processes: more at a time than the machine has cores.
test: .venv/.ready-to-develop
	@$(BIN)/python -m pytest -n $(or $(WORKERS),3) --dist worksteal -m "not long" $(PYTEST)
	@$(if $(PYTEST),,$(MAKE) --no-print-directory test-sim-short)

test-long: .venv/.ready-to-develop
	@$(BIN)/python -m pytest -n $(or $(WORKERS),3) --dist worksteal -m long $(PARTLY) $(PYTEST)

test-deepspeed: .venv/.ready-to-develop
	@$(BIN)/python -m pytest plugins/deepspeed -m engine --timeout 900 $(PARTLY) $(PYTEST)
	@$(BIN)/python -m pytest tests/corpus/test_on_deepspeed.py plugins/diff/tests/test_deepspeed_private.py -m soak --timeout 900 $(PYTEST)

test-horovod: .venv-horovod/.ready
	@$(HOROVOD)/python -m pytest plugins/horovod --timeout 600 $(PYTEST)

soak: .venv/.ready-to-develop
	@set -e; for name in kills saves signals hangs; do $(BIN)/python -m tests.soak.$$name; done
	@$(BIN)/python -m pytest -m soak --timeout 600 $(PYTEST)

# The server is from apt (etcd-server); its client goes into a folder of its own.
test-etcd: .venv/.ready-to-develop
	@command -v etcd > /dev/null || { echo "etcd isn't installed: apt-get install etcd-server" >&2; exit 1; }
	@$(PIP) --target .venv/etcd python-etcd
	@PYTHONPATH=$(CURDIR)/.venv/etcd $(BIN)/python -m pytest tests/integration/test_etcd.py -m soak $(PYTEST)

# It wants other versions of what it depends on than moto does; those that are there do.
test-kubernetes: .venv/.ready-to-develop
	@$(PIP) --no-deps --target .venv/kubernetes kubernetes durationpy oauthlib requests-oauthlib websocket-client
	@PYTHONPATH=$(CURDIR)/.venv/kubernetes $(BIN)/python -m pytest plugins/kubernetes $(PYTEST)

test-ray: .venv/.ready-to-develop
	@test -e .venv/ray/.ready || { $(PIP) --target .venv/ray "ray[default,train,tune]" && touch .venv/ray/.ready; }
	@PYTHONPATH=$(CURDIR)/.venv/ray $(BIN)/python -m pytest plugins/ray --timeout 300 $(PYTEST)

# MLflow wants other versions than constraints.txt has; of what the others depend on, the rest is there. Aim is built
# where it has no wheel, and left out where that fails.
LIBRARIES := accelerate peft datasets pyarrow pandas dill multiprocess ipywidgets widgetsnbextension jupyterlab_widgets \
	trackio>=0.40 gradio_client orjson webdataset braceexpand hydra-core>=1.3 omegaconf<2.4 antlr4-python3-runtime==4.9.3
AIM := aim>=3.20 aimrecords aimrocks RestrictedPython cachetools pytz fastapi starlette uvicorn websockets
.venv/libraries/.ready: .venv/.ready-to-develop
	@echo "$(LIBRARIES) $(AIM)" | cmp -s - $@ || { rm -rf .venv/libraries \
		&& $(subst -c constraints.txt,,$(PIP)) --target .venv/libraries "mlflow-skinny>=2.15" "comet_ml>=3.47" \
		&& $(PIP) --target .venv/libraries --no-deps $(foreach each,$(LIBRARIES),"$(each)") \
		&& { $(PIP) --target .venv/libraries --no-deps $(foreach each,$(AIM),"$(each)") || echo "Aim can't be installed here: its tests are skipped"; }; }
	@echo "$(LIBRARIES) $(AIM)" > $@

test-libraries: .venv/.ready-to-develop .venv/libraries/.ready
	@PYTHONPATH=$(CURDIR)/.venv/libraries $(BIN)/python -m pytest plugins/loggers plugins/huggingface tests/integration/test_notebooks.py tests/integration/test_hydra.py tests/integration/test_webdataset.py tests/core/data/test_pipelines.py plugins/cli/tests/test_composed.py tests/docs/test_coming_from_pages.py tests/corpus/test_on_accelerate.py tests/corpus/test_found.py $(PYTEST)

# A minute of what `make test-sim` runs, in processes of its own: PyTorch takes the device for the default of a process.
SIM_SHORT := test_conformance.py::TestSim \
	$(foreach strategy,ddp fsdp,test_conformance.py::TestFurther::test_conforms[parity-2-$(strategy)]) \
	$(foreach strategy,ddp fsdp,test_saves.py::test_a_save_has_what_was_computed_before_and_nothing_of_later[$(strategy)-2-True]) \
	test_batches_beside.py::test_the_next_batch_comes_while_a_step_computes[runtime-True-late]
test-sim-short: .venv/.ready-to-develop
	@$(BIN)/python -m stratagem_sim.build 2> /dev/null || echo "There is no C++ compiler: tests on the simulated device are skipped"
	@$(BIN)/python -m pytest -n 2 -m sim --timeout 300 -rs $(foreach test,$(SIM_SHORT),"plugins/sim/tests/$(test)")

# The device is C++ code, which is built once and kept in the user's cache.
test-sim: .venv/.ready-to-develop
	@$(BIN)/python -m stratagem_sim.build
	@$(BIN)/python -m pytest -n $(or $(WORKERS),2) plugins/sim/tests plugins/*/tests/*_on_sim.py -m sim --timeout 600 $(PYTEST)

test-xla: .venv-xla/.ready
	@$(XLA)/python -m pytest plugins/xla/tests --timeout 600 $(PARTLY) $(PYTEST)
	@$(XLA)/python -m pytest $(XLA_CORE_TESTS) --timeout 600 $(PARTLY) $(PYTEST)
	@$(XLA)/stratagem conformance ddp fsdp --world-size 2

lint: .venv/.ready-to-develop
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@PATH="$(BIN):$$PATH" $(BIN)/lint-imports --no-logo

format: .venv/.ready-to-develop
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

docs: .venv/.ready-to-develop
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/gen/mkdocs.yml
	@echo "Documentation: site/index.html"

sdk: .venv/.ready-to-develop
	@$(BIN)/python docs/gen/sdk.py > docs/sdk.md
	@$(BIN)/python docs/gen/sdk.py --surface > docs/gen/surface.txt

# hatchling itself, which is here already, needs no network; the release workflow builds by `python -m build`.
dist: .venv/.ready-to-run
	@rm -rf dist
	@for project in $(dir $(PROJECTS)); do said=$$(cd $$project && $(abspath $(BIN))/python -m hatchling build -d $(CURDIR)/dist 2>&1) || { echo "$$said" >&2; exit 1; }; done
	@test -e .venv/twine/.ready || { $(PIP) --target .venv/twine twine && touch .venv/twine/.ready; }
	@said=$$(PYTHONPATH=$(CURDIR)/.venv/twine $(BIN)/python -m twine check --strict dist/* 2>&1) || { echo "$$said" >&2; exit 1; }
	@echo "dist/: $$(ls dist/*.whl | wc -l) wheels, $$(ls dist/*.tar.gz | wc -l) source distributions; twine found nothing wrong"

test-wheels: dist .venv/.ready-to-develop
	@$(BIN)/python -m tests.wheels dist

facade: .venv/.ready-to-develop
	@$(BIN)/python plugins/facade/write.py

packages: .venv/.ready-to-develop
	@$(BIN)/python docs/gen/packages.py

plugins: .venv/.ready-to-develop
	@$(BIN)/python docs/gen/plugins.py > docs/plugins.md

walks: .venv/.ready-to-develop
	@$(BIN)/python -m tests.walks --page docs/walks.md

hooks: .venv/.ready-to-develop
	@$(BIN)/python docs/gen/hooks.py > docs/hooks.md
	@$(BIN)/python docs/gen/module_hooks.py > docs/guides/module-hooks.md
	@$(BIN)/python docs/gen/trainer_arguments.py > docs/guides/trainer-arguments.md

coming-from: .venv/.ready-to-develop
	@$(BIN)/python docs/gen/coming_from.py
	@$(BIN)/python docs/gen/lightning.py > docs/coming-from-lightning.md

moving: .venv/.ready-to-develop
	@$(BIN)/python plugins/lightning/tests/moving.py $(or $(DIR),plugins/lightning/tests/programs)

picture: .venv/.ready-to-run
	@$(BIN)/python docs/gen/picture.py > docs/assets/run.svg.new && mv docs/assets/run.svg.new docs/assets/run.svg

report-picture: .venv/.ready-to-develop
	@$(BIN)/python docs/gen/report_picture.py

conformance: .venv/.ready-to-develop
	@$(BIN)/python docs/gen/conformance.py --run $(if $(NEW),--new) $(NAMES)
	@$(BIN)/python docs/gen/conformance.py

conformance-horovod: .venv-horovod/.ready
	@$(HOROVOD)/python docs/gen/conformance.py --run $(if $(NEW),--new) horovod
	@$(HOROVOD)/python docs/gen/conformance.py

conformance-xla: .venv-xla/.ready
	@PJRT_DEVICE=CPU $(XLA)/python docs/gen/conformance.py --run $(if $(NEW),--new) $(or $(NAMES),$(XLA_STRATEGIES))
	@$(XLA)/python docs/gen/conformance.py

# The page is written also where cells are neither equal nor refused as listed; then this fails.
parity: .venv/.ready-to-develop
	@$(BIN)/python -m tests.parity.run --json docs/gen/parity.json $(if $(ONLY),--columns $(ONLY)); \
	tried=$$?; $(BIN)/python docs/gen/parity.py; exit $$tried

parity-deepspeed: .venv/.ready-to-develop
	@$(MAKE) parity ONLY="$(addprefix deepspeed_stage_,1 2 3)"

compositions: .venv/.ready-to-develop
	@PYTHONPATH=tests/support $(BIN)/python -m tests.compositions.run $(ONLY) --json docs/gen/compositions.json; \
	tried=$$?; $(BIN)/python docs/gen/compositions.py; exit $$tried

# Horovod and strategies on XLA take part where `make test-horovod` and `make test-xla` have made their environments.
portability: .venv/.ready-to-develop
	@set -e; saved=$$(mktemp -d); trap 'rm -rf "$$saved"' EXIT; export PJRT_DEVICE=CPU; pythons=$(BIN)/python; \
	for each in .venv-horovod .venv-xla; do if test -e $$each/.ready; then pythons="$$pythons $$each/bin/python"; fi; done; \
	for python in $$pythons; do $$python -m tests.portability.run write "$$saved"; done; \
	$(if $(NEW),,rm -f docs/gen/portability.json;) \
	for python in $$pythons; do $$python -m tests.portability.run read "$$saved" --json docs/gen/portability.json $(if $(NEW),--new) || true; done
	@$(BIN)/python docs/gen/portability.py

hands-on: .venv/.ready-to-develop
	@$(BIN)/python -m tests.support.hands_on $(or $(STRATEGIES),ddp ddp_sharded ddp_fully_sharded fsdp model_parallel) --devices $(or $(DEVICES),2) --json docs/gen/hands_on.json
	@$(BIN)/python docs/gen/parity.py

test-places: .venv/.ready-to-develop
	@$(BIN)/python tests/places/slurm_cluster.py .places/slurm
	@$(BIN)/python -m pytest tests/places

fuzz: .venv/.ready-to-develop
	@$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1000000)

differ: .venv/.ready-to-develop
	@$(BIN)/python -m tests.differ.run --seconds $(or $(SECONDS),600) --seed $(or $(SEED),0) $(if $(STRATEGIES),--strategies $(STRATEGIES))

mutate: .venv/.ready-to-develop
	@$(BIN)/python -m tests.mutation.run $(if $(ONLY),--only $(ONLY)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

mutate-sim: .venv/.ready-to-develop
	@$(BIN)/python -m stratagem_sim.build
	@$(BIN)/python -m tests.mutation.run --waits $(if $(ONLY),--only $(ONLY))

planted: .venv/.ready-to-develop
	@$(BIN)/python -m tests.planted $(NAMES)

corpus: .venv/.ready-to-develop .venv/libraries/.ready
	@PYTHONPATH=$(CURDIR)/.venv/libraries $(BIN)/python -m tests.corpus $(ONLY)

corpus-clean: .venv/.ready-to-develop
	@$(BIN)/python -m tests.corpus.clean $(if $(MODELS),--models $(MODELS)) $(if $(STRATEGIES),--strategies $(STRATEGIES))

bench: .venv/.ready-to-develop
	@set -e; for name in imports discovery overhead startup data_in_memory throughput checksums background_saves checkpoint_export replica_guard record strategies_speed watching capsule strategy_memory activations compiling float8 largest cut_sequences slow_links deepspeed_engine; do $(BIN)/python tests/benchmarks/$$name.py; done

bench-horovod: .venv-horovod/.ready
	@$(HOROVOD)/python tests/benchmarks/horovod_engine.py

bench-xla: .venv-xla/.ready
	@set -e; for name in xla xla_beside; do $(XLA)/python tests/benchmarks/$$name.py; done

# On a machine without a network: PYTHONPATH=.gpu/site python3 -m tests.gpu
gpu: .venv/.ready-to-develop
	@$(BIN)/python -m tests.gpu --accelerator $(or $(ACCELERATOR),cuda) --json $(if $(filter-out cuda,$(ACCELERATOR)),.gpu/rehearsal.json,docs/gen/gpu.json); \
	tried=$$?; $(BIN)/python docs/gen/gpu.py > docs/gpu.md; exit $$tried

gpu-bundle: .venv/.ready-to-develop
	@$(BIN)/python -m tests.gpu.bundle --python $(or $(PYTHON_VERSION),3.12)

clean:
	@rm -rf .venv .gpu site dist runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 10) and "Stratagem needs Python 3.10 or newer, and $(PYTHON) is %d.%d: make PYTHON=python3.12 …" % v[:2])'
	@echo "Making .venv"
	@$(PYTHON) -m venv .venv

# PyTorch first and by itself: an installer that sees it unpinned fetches gigabytes of another build.
# The build backend next, so that the packages of this repository are built without a network.
.venv/.ready-to-run: .venv/bin/python constraints.txt $(PROJECTS)
	@echo "Installing PyTorch and Stratagem"
	@$(PIP) torch numpy
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation $(EDITABLE) -e '.[examples]'
	@touch $@

.venv/.ready-to-develop: .venv/.ready-to-run
	@echo "Installing the tools for development"
	@$(PIP) deepspeed fairscale
	@$(PIP) --no-build-isolation $(EDITABLE) -e '.[dev]'
	@touch $@

# Horovod is built for one PyTorch, and with MPI where that is installed (apt-get install openmpi-bin libopenmpi-dev).
# The wheel stays in .venv-horovod/wheels.
.venv-horovod/bin/python:
	@echo "Making .venv-horovod"
	@$(PYTHON) -m venv .venv-horovod

.venv-horovod/.ready: .venv-horovod/bin/python constraints.txt $(PROJECTS)
	@echo "Installing PyTorch, Stratagem and Horovod"
	@$(HOROVOD_PIP) torch numpy
	@$(HOROVOD_PIP) hatchling editables
	@$(HOROVOD_PIP) --no-build-isolation $(EDITABLE) psutil pytest pytest-timeout pytest-xdist
	@$(HOROVOD)/python -m stratagem_horovod.build --keep .venv-horovod/wheels
	@touch $@

# torch_xla needs a torch of its own, and so an environment of its own.
define XLA_NEEDS
import platform, shutil, sys
version, machine = sys.version_info[:2], platform.system() + " " + platform.machine()
if machine != "Linux x86_64" or not (3, 10) <= version < (3, 14):
    sys.exit("torch_xla 2.9 is there for Python 3.10 to 3.13 on Linux x86_64, and $(PYTHON) is Python %d.%d on %s: make PYTHON=python3.12 test-xla, or do without" % (*version, machine))
free = shutil.disk_usage(".").free / 1e9
if free < 12:
    sys.exit("torch_xla and its PyTorch need 12 GB of disk while they are installed, and %.1f GB are free: make room, or do without make test-xla" % free)
endef
export XLA_NEEDS

.venv-xla/bin/python:
	@$(PYTHON) -c "$$XLA_NEEDS"
	@echo "Making .venv-xla"
	@$(PYTHON) -m venv .venv-xla

.venv-xla/.engine: .venv-xla/bin/python constraints-xla.txt
	@echo "Installing torch_xla and its PyTorch, some 4 GB"
	@$(XLA_PIP) torch torch_xla numpy || { echo "torch 2.9 and torch_xla 2.9 could not be installed into .venv-xla: see above why; the next make test-xla tries again" >&2; exit 1; }
	@touch $@

.venv-xla/.ready: .venv-xla/.engine constraints-xla.txt $(PROJECTS)
	@echo "Installing Stratagem beside torch_xla"
	@$(XLA_PIP) hatchling editables
	@$(XLA_PIP) --no-build-isolation $(EDITABLE) psutil pytest pytest-rerunfailures pytest-timeout torchdata transformers
	@touch $@
