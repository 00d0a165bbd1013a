# Eight words: caption · smoke · test · check · docs · dist · bench · clean. Each sets up what it needs in .venv on first use, and again only
# when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
IMAGE  ?=

.PHONY: caption smoke test check docs dist bench clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What captioning needs, and no more: neither torch nor, of scikit-image, more than its photographs.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --no-compile -e .
	$(PIP) --no-compile --no-deps scikit-image
	@du -sh $(VENV) | cut -f1 | sed 's/^/installed: /'
	@touch $@

# Everything: all extras, and the tools that check the code.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[train,metrics,fast,spice,features,heif,vision,serve,export,hub,ray,demo,docs,dev]'
	@touch $@ $(VENV)/.installed

# Tests of pages open them in Chromium. Where we may, it is installed; elsewhere those tests skip and say what to install.
$(VENV)/.browser: | $(BIN)/python
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null || true
	@touch $@

caption: $(VENV)/.installed
	$(BIN)/python examples/caption_demo.py $(if $(IMAGE),'$(subst ','\'',$(IMAGE))')

# Train on drawn shapes, cross-entropy then self-critical, in about a minute; the report pages are in out/smoke.
smoke: $(VENV)/.installed-dev
	XLAN=$(BIN)/xlan bash runs/smoke.sh

test: $(VENV)/.installed-dev $(VENV)/.browser
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, in build/site; a warning is an error. To read it: python -m http.server -d build/site
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo built: build/site

# The wheel and the source archive of a release, in dist: built, checked, and installed to caption a picture.
dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python runs/check_dist.py dist

bench: $(VENV)/.installed-dev
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
