# The two commands of the README are `make demo` and `make test`; CI calls the same targets.
PYTHON ?= python3
VENV   ?= .venv
ORACLE ?= .venv-oracle
BIN     = $(VENV)/bin
MODEL   = demo/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: demo rtx test test-oracle lint benchmarks clean

demo: $(VENV)/.installed
	$(BIN)/python -m trtbuild.demo $(MODEL)
	$(BIN)/trtbuild run $(MODEL) --profile ci -o demo/out

# Real TensorRT-RTX engines of the demo model, from the demo's checkpoints where it has run; needs no GPU.
rtx: $(VENV)/.installed $(MODEL)
	$(BIN)/python benchmarks/rtx_build.py $(MODEL) --checkpoints demo/out/checkpoints

test: $(VENV)/.installed
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-oracle: $(ORACLE)/.installed $(MODEL)
	$(ORACLE)/bin/python -m pytest tests/oracle --timeout 1500

$(MODEL): $(VENV)/.installed
	$(BIN)/python -m trtbuild.demo $(MODEL)

# tensorrt-rtx ships for Linux on x86-64 only; everything else works without it.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[test]'
	$(BIN)/python -m pip install --quiet -e '.[rtx]' || echo "tensorrt-rtx is not available here; its tests are skipped"
	touch $@

# torch first and alone: its pinned CPU build must be chosen before any package asks for a newer one.
$(ORACLE)/.installed: pyproject.toml
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet --upgrade pip
	$(ORACLE)/bin/python -m pip install --quiet torch==2.13.0
	$(ORACLE)/bin/python -m pip install --quiet -e '.[test,oracle]'
	touch $@

clean:
	rm -rf $(VENV) $(ORACLE) demo build dist *.egg-info
