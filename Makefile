# Two commands for a fresh machine; each installs what it needs into .venv of this checkout:
#
#   make tune    tune all-gather + GEMM on this machine and print the report; ARGS="--m 4096 …"
#   make test    all checks: ruff, mypy, pytest; ARGS="-k heap …" goes to pytest
#
# and six for occasional use:
#
#   make test-slow     the tests that "make test" leaves out: whole matrices, of which that runs a part
#   make test-lowest   the decorator's contract and a sample of kernels with the lowest Triton that works, in .lowest
#   make test-doors    the plugins for vLLM and SGLang, torchtitan and transformers, with what they need in .doors
#   make docs          the docs as a website, in site/
#   make wheelhouse    collect the wheels that a GPU host without internet needs (docs/offline-hosts.md)
#   make clean         remove everything that the others made
#
# PYTHON=python3.12 selects another Python for the environment. pip's own settings (PIP_INDEX_URL and the like) apply.
# All paths are relative, so that a checkout's folder may have a space in its name.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
STAMP := .venv/installed
# Two tests at a time on two cores, four on more; a file's tests share their processes.
PYTEST := $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
export PYTHONNOUSERSITE := 1
# Containers often set it: each worker would rewrite all tests again, and each rank compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# The stamp holds the place it was made for: a copied or moved checkout would otherwise run the old place's code.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: tune test test-slow test-lowest test-doors docs wheelhouse clean

tune: $(STAMP)
	@$(BIN)/tune all-gather-gemm $(ARGS)
	@$(BIN)/tune report all-gather-gemm

# mypy keeps one core busy for half a minute without its cache, so it runs beside the tests; its errors come last.
test: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary > .venv/types.log 2>&1 & types=$$!; $(PYTEST) $(ARGS); tests=$$?; \
	wait $$types || { cat .venv/types.log >&2; exit 1; }; exit $$tests

test-slow: $(STAMP)
	@$(PYTEST) -m slow $(ARGS)

# The lowest Triton lies before the locked one on the path. Its interpreter needs an older NumPy, and does what that calls
# deprecated.
test-lowest: $(STAMP)
	@[ -d .lowest/triton ] || $(PIP) install --no-deps --target .lowest "triton==3.6.*" "numpy==2.3.*"
	@PYTHONPATH="$(CURDIR)/.lowest" $(PYTEST) -W "ignore:Conversion of an array:DeprecationWarning" \
	$(or $(ARGS),--ignore=tests/decorator/test_example.py tests/decorator tests/examples/test_operators.py)

test-doors: $(STAMP)
	@$(BIN)/python tests/doors/run.py $(ARGS)

$(STAMP): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, and \
	$(PYTHON) is older. To use another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up .venv: torch, triton and the rest of constraints.txt. This takes a minute or more, once." >&2
	@[ "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" ] || "$(PYTHON)" -m venv --clear .venv
	@$(PIP) install -c constraints.txt setuptools
	@$(PIP) install -c constraints.txt --no-build-isolation -e ".[dev]"
	@rm -rf build
	@printf '%s\n' "$(CURDIR)" > $@

# x86-64 Linux, CPython 3.12, any wheel that runs with glibc 2.28 (that of RHEL 8): pip wants each older tag named.
GLIBCS := 28 27 26 24 17 12 5
wheelhouse: $(STAMP)
	@echo "Filling wheelhouse/ for Python 3.12 on x86-64 Linux" >&2
	@rm -rf wheelhouse build && mkdir wheelhouse
	@sed '/^# torch, triton/,$$d' constraints.txt > wheelhouse/constraints.txt
	@$(PIP) download --no-deps --only-binary=:all: --implementation cp --python-version 3.12 --abi cp312 --abi abi3 \
	--abi none $(GLIBCS:%=--platform manylinux_2_%_x86_64) --platform manylinux2014_x86_64 \
	--platform manylinux2010_x86_64 --platform manylinux1_x86_64 -d wheelhouse -r wheelhouse/constraints.txt
	@$(PIP) wheel --no-deps --no-build-isolation -w wheelhouse .
	@rm -rf build
	@echo "wheelhouse/: $$(ls wheelhouse/*.whl | wc -l) wheels, $$(du -sh wheelhouse | cut -f1). Next: docs/offline-hosts.md" >&2

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)
	@echo "site/index.html" >&2

clean:
	@rm -rf .venv .lowest .doors wheelhouse build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache
	@find . -path './.*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
