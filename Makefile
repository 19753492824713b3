# Everything by one word. Each target makes its own virtual environment when it is missing, or when
# pyproject.toml has changed since; afterwards all of them work without a network.
PYTHON ?= python3
JOBS ?= 2
# Without bytecode each worker, and each command that a test starts, compiles all sources again.
TESTING = env -u PYTHONDONTWRITEBYTECODE
PYTEST = $(TESTING) $(BIN)/python -m pytest -n $(JOBS) --dist loadscope
BIN = .venv/bin
DOCS_BIN = .venv-docs/bin
PEERS_BIN = .venv-peers/bin
# NVIDIA's compiler as wheels: it makes PTX of the GPU's kernels on any machine, for tests that read it.
ADD_NVVM = -m pip install --quiet --editable ".[cu13]" || echo "numba-cuda cannot be installed here: what needs NVVM is skipped"
# A stamp is named by the content of pyproject.toml, so a fresh checkout of the same file stays valid.
STAMP := $(shell $(PYTHON) -c "import hashlib; print(hashlib.sha256(open('pyproject.toml', 'rb').read()).hexdigest()[:12])")

.DEFAULT_GOAL := help
.PHONY: help demo test test-all mutants bench gpu gpu-plans cubins lint notebooks docs clean
.DELETE_ON_ERROR:

help:
	@echo "make demo      train a ResNet-18 on handwritten digits in 41 % of the memory it needs"
	@echo "make test      the quick tests (5 to 7 minutes on 2 cores, compilation included)"
	@echo "make test-all  every test, comparison with torch included where it can be installed"
	@echo "make mutants   small mistakes, and how many of them the tests notice; hours"
	@echo "make bench     benchmarks, against torch where it can be installed"
	@echo "make gpu RUN=1  what only a GPU can show, in three runs of at most ten minutes; installs nothing"
	@echo "make gpu REHEARSE=values  the same without a GPU, over a stub of its driver"
	@echo "make cubins OUT=folder  the kernels' machine code, for make gpu CUBINS=folder; needs no GPU"
	@echo "make gpu-plans OUT=folder  plans of its steps, for make gpu PLANS=folder; needs no GPU"
	@echo "make lint      ruff and mypy"
	@echo "make notebooks tutorials and puzzles as executed notebooks, in build/notebooks"
	@echo "make docs      the documentation as HTML"
	@echo "make clean     removes the virtual environments and caches of this folder"

# It needs what training needs, and no more.
demo: .venv/$(STAMP).demo
	$(BIN)/ooctrain train resnet18 --data digits --batch 256 --budget 25% --epochs 4 --verify-steps 5
	$(BIN)/ooctrain train resnet18 --data digits --batch 256 --memory 1GiB --steps 3

test: .venv/$(STAMP).stamp
	$(PYTEST) -m "not slow" tests

test-all: .venv-peers/$(STAMP).stamp
	$(TESTING) $(PEERS_BIN)/python -m pytest -n $(JOBS) --dist loadscope tests

# It goes on where it was interrupted; what is known is in build/mutants.
MUTANTS = $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(FROM),--from $(FROM)) \
  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(NEAREST),--nearest) $(if $(PAGE),--page $(PAGE))
mutants: .venv/$(STAMP).stamp
	PYTHONPATH=.:tests $(BIN)/python -m mutants $(MUTANTS)

bench: .venv-peers/$(STAMP).stamp
	$(PEERS_BIN)/python -m benchmarks

# The machine's own Python as it is: numba-cuda and what ooctrain needs are all that it needs.
# RUN=1, 2 or 3 is one of three runs of at most ten minutes; REHEARSE=values or time needs no GPU.
GPU_OPTIONS = $(if $(RUN),--run $(RUN)) $(if $(PARTS),--parts "$(PARTS)") \
  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(PLANS),--plans "$(PLANS)") \
  $(if $(HOST_MEMORY),--host-memory "$(HOST_MEMORY)") $(if $(COMMIT),--commit "$(COMMIT)") \
  $(if $(REHEARSE),--rehearse $(REHEARSE)) $(if $(CAPABILITY),--capability $(CAPABILITY))
gpu:
	$(if $(CUBINS),OOCTRAIN_CUBINS="$(CUBINS)" OOCTRAIN_LAUNCHER=driver) \
	  $(PYTHON) -m benchmarks.gpu "$(or $(OUT),benchmarks/results)" $(GPU_OPTIONS)

# Plans of what `make gpu` runs, searched for on any machine as long as they take (minutes).
gpu-plans:
	@test -n "$(OUT)" || { echo "make gpu-plans OUT=folder" >&2; exit 2; }
	$(PYTHON) -m benchmarks.gpu.plans "$(OUT)" $(if $(BUDGETS),--budgets "$(BUDGETS)")

# Machine code for GPUs of compute capability 7.5, 8.0 and 9.0, made on any machine with the compiler.
cubins:
	@test -n "$(OUT)" || { echo "make cubins OUT=folder" >&2; exit 2; }
	$(PYTHON) -m benchmarks.gpu.cubins "$(OUT)"

lint: .venv/$(STAMP).stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Executed only where a script or the library has changed since; with the wheel that they install.
notebooks: .venv-docs/$(STAMP).stamp
	$(DOCS_BIN)/python docs/pages/notebooks.py build/notebooks --jobs $(JOBS)
	rm -f build/notebooks/*.whl
	$(DOCS_BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/notebooks .

docs: notebooks
	$(DOCS_BIN)/python -m sphinx -W -b html docs docs/_build/html
	$(DOCS_BIN)/python docs/pages/links.py docs/_build/html

.venv/$(STAMP).demo:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/$(STAMP).stamp:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch .venv/$(STAMP).demo
	$(BIN)/python $(ADD_NVVM)
	touch $@

.venv-peers/$(STAMP).stamp:
	$(PYTHON) -m venv .venv-peers
	$(PEERS_BIN)/python -m pip install --quiet --editable ".[dev,data,browser]"
	$(PEERS_BIN)/python $(ADD_NVVM)
	$(PEERS_BIN)/python -m pip install --quiet torch==2.13.0 || echo "torch cannot be installed here: what compares with it is skipped"
	$(PEERS_BIN)/python -m pip install --quiet torchvision==0.28.0 timm==1.0.31 || echo "networks of torchvision and timm are skipped"
	$(PEERS_BIN)/python -m pip install --quiet onnx==1.23.2 onnxruntime || echo "what needs onnx is skipped"
	touch $@

.venv-docs/$(STAMP).stamp:
	$(PYTHON) -m venv .venv-docs
	$(DOCS_BIN)/python -m pip install --quiet --editable ".[docs,notebooks]"
	touch $@

clean:
	rm -rf .venv .venv-peers .venv-docs .pytest_cache .hypothesis .mypy_cache .ruff_cache build dist
