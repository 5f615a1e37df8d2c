# The commands of the README. Each builds what it needs; nothing must be run before them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  ?= rose-demo
# Not from the environment, where some shells and compilers keep a HOST of their own.
HOST   := 127.0.0.1
PORT   ?= 8000
FORMAT ?= harmony
RUNS   ?= 1000000
# Of this folder: an environment holds absolute paths, and one that was moved or copied runs another folder's code.
STAMP  := $(VENV)/.installed-$(shell pwd | cksum | cut -d' ' -f1)

define IS_NEW_ENOUGH
import sys; sys.version_info < (3, 11) and sys.exit("rose needs Python 3.11 or newer, and $(PYTHON) is %d.%d: \
name another with make PYTHON=/path/to/python3" % sys.version_info[:2])
endef

.PHONY: help install serve test test-slow test-clients test-api test-gpu bench-gpu fuzz lint format lock clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

install: $(STAMP) ## make .venv and install rose and its locked dependencies

# Without a stamp there is no environment, or half of one: it is made anew. One `make` at a time: a second one waits.
# torch first and alone: with it in place no later package can pull in another build of it.
$(STAMP): requirements.lock pyproject.toml
	@exec 9< Makefile && flock 9 && set -e; \
	test -e $@ || { $(PYTHON) -c '$(IS_NEW_ENOUGH)'; $(PYTHON) -m venv --clear $(VENV); }; \
	echo "installing what requirements.lock lists into $(VENV); the first time this takes minutes"; \
	$(BIN)/python -m pip install --quiet "$$(grep -i '^torch==' requirements.lock)"; \
	$(BIN)/python -m pip install --quiet -r requirements.lock; \
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .; \
	touch $@

# exec: what ends make ends the server, which has no shell in between.
serve: install   ## serve MODEL (rose-demo) at http://HOST:PORT
	exec $(BIN)/rose serve "$(MODEL)" --host "$(HOST)" --port "$(PORT)"

test: install    ## the test suite, with coverage
	exec $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal --cov --cov-report=term -m "not gpu and not slow"

test-slow: install ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-clients: install ## real clients of the API, each installed under .venv-clients first
	ROSE_TEST_CLIENTS=1 $(BIN)/python -m pytest -rs tests/clients

test-api: install ## fuzz the API by its document with schemathesis, installed under .venv-clients; ROSE_API_CASES=100
	ROSE_TEST_API=1 $(BIN)/python -m pytest -rs tests/contract

# atheris, which is libFuzzer for Python, stands beside the environment: it is no part of the lock.
fuzz: install    ## RUNS streams of nonsense for the parser of FORMAT (harmony, chatml, ...), led by coverage
	test -d .venv-fuzz || $(BIN)/python -m pip install --quiet --target .venv-fuzz atheris==3.0.0
	mkdir -p ".venv-fuzz/corpus/$(FORMAT)"
	PYTHONPATH=.venv-fuzz $(BIN)/python -m tests.fuzz "$(FORMAT)" -runs=$(RUNS) -max_len=64 -len_control=20 \
		-print_final_stats=1 ".venv-fuzz/corpus/$(FORMAT)"

# On a GPU machine the plain python3 is used: it holds the CUDA build of torch.
test-gpu:        ## the tests that need an NVIDIA GPU, with the plain python3
	$(PYTHON) -m pytest -m gpu -p no:cacheprovider tests/gpu

bench-gpu:       ## time the kernels at gpt-oss's shapes, with the plain python3
	$(PYTHON) -m rose.kernels.paged_attention.bench
	$(PYTHON) -m rose.kernels.moe_fp8.bench

lint: install    ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A fresh environment, so that the lock holds what rose needs and nothing else. Platform packages that only a
# CUDA build of torch needs are left to torch's own metadata.
lock:            ## write requirements.lock anew
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet torch==2.13.0 'setuptools>=77' wheel
	.venv-lock/bin/python -m pip install --quiet -e '.[dev]'
	.venv-lock/bin/python -m pip freeze --all --exclude-editable > .venv-lock/freeze
	grep -vE '^(pip|(nvidia|cuda)-[^=]*)==' .venv-lock/freeze | sed -E 's/\+[a-z0-9.]+$$//; s/ @ .*//' > requirements.lock
	rm -rf .venv-lock

clean:           ## remove the environment and caches
	rm -rf $(VENV) .venv-lock .venv-clients .venv-fuzz .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* build *.egg-info
