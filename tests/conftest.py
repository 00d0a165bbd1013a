"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from xlan.threads import sleep_while_waiting

sleep_while_waiting()  # before torch is imported, as the command line does

# Some virtual machines announce AMX and then stop the process at its first instruction; tests do without it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Started in the background of a script, we inherit that Ctrl-C is ignored, and so would the programs under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FIXTURES = Path(__file__).parent / "fixtures"
Tags: TypeAlias = list[tuple[str, dict[str, str | None]]]


@pytest.fixture(autouse=True, scope="session")
def _few_threads() -> None:
    """Small tensors are faster on one thread, and tests then do not depend on the number of cores."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(int(os.environ.get("XLAN_TEST_THREADS", "1")))


@dataclass(frozen=True)
class Reference:
    """A model of the released code at small size: its weights in our model, its inputs and what it computed."""

    model: object
    features: object  # [4, 7, 40]
    mask: object  # [4, 7] bool
    tokens: object  # [8, 10] inputs, 2 captions per image
    targets: object  # [8, 10], -1 where there is none
    lengths: object  # [8]
    outputs: dict[str, object]
    gradients: dict[str, object]  # by our names


def load_reference(tag: str, dtype: str) -> Reference:
    import torch
    from safetensors.torch import load_file

    from xlan.model.build import build_model
    from xlan.model.released import convert_released

    folder = FIXTURES / "reference"
    spec, weights = convert_released(load_file(folder / f"{tag}_weights.safetensors"))
    model = build_model(spec).to(getattr(torch, dtype)).eval()
    model.load_state_dict(weights)
    inputs = load_file(folder / f"{tag}_inputs.safetensors")
    _, gradients = convert_released(load_file(folder / f"{tag}_xe_grads_f64.safetensors"))
    return Reference(
        model=model,
        features=inputs["att_feats"].to(getattr(torch, dtype)),
        mask=inputs["att_mask"].bool(),
        tokens=inputs["input_seq"],
        targets=inputs["target_seq"],
        lengths=(inputs["target_seq"] >= 0).sum(1),
        outputs=dict(load_file(folder / f"{tag}_outputs_{'f64' if dtype == 'float64' else 'f32'}.safetensors")),
        gradients=dict(gradients),
    )


@pytest.fixture(params=["xlan", "xtransformer"])
def reference(request: pytest.FixtureRequest) -> Reference:
    """Both reference models in float64."""
    return load_reference(request.param, "float64")


@pytest.fixture(params=["xlan", "xtransformer"])
def reference_f32(request: pytest.FixtureRequest) -> Reference:
    """Both reference models in float32."""
    return load_reference(request.param, "float32")


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model directory that captions pictures, with random weights: 11 words, 64 pixels, 5 regions."""
    import torch

    from xlan.model.build import build_model
    from xlan.pretrained import save_pretrained
    from xlan.text.vocab import Vocabulary
    from xlan.vision import efficientnet
    from xlan.vision.grid import GridExtractor
    from xlan.vision.grid_settings import GridSettings

    folder = tmp_path_factory.mktemp("models")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = efficientnet.build("efficientnet-lite0")
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # the statistics of one batch, so that different pictures look different
        network.train()(torch.randn(16, 3, 64, 64))
        GridExtractor(network, GridSettings("efficientnet-lite0", input_size=64)).save(folder / "vision.safetensors")
        words = Vocabulary.from_words(["a", "dog", "dogs", "cat", "on", "grass", "the"])
        model = build_model("xlan-tiny", vocab_size=len(words), feature_dim=1280)
    save_pretrained(
        folder / "model",
        model.spec,
        model.state_dict(),
        words,
        extras={"vision.safetensors": folder / "vision.safetensors"},
    )
    return folder / "model"


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A browser under test shows our pages and talks to nobody else; QUIC and the GPU process only cost start-up time.
BROWSER_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A playwright `Browser`: the Chromium of the system, without a window.

    One per test file and not one per session: while it is open, playwright keeps an event loop running in the main
    thread, and tests that call `asyncio.run` could not follow.
    """
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'xlan[dev]'")
    found = os.environ.get("XLAN_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium found: install it (Debian: apt install chromium) or name it in XLAN_CHROMIUM")
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # root cannot have one
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=[*BROWSER_FLAGS, *sandbox])
        yield opened
        opened.close()


@pytest.fixture
def page_of(browser: Any) -> Iterator[Callable[..., Any]]:
    """`page_of(color_scheme="dark", width=390)`: a fresh playwright `Page`, closed after the test."""
    contexts = []

    def open_page(*, color_scheme: str = "light", width: int = 1200, height: int = 900, **options: Any) -> Any:
        size = {"width": width, "height": height}
        contexts.append(browser.new_context(color_scheme=color_scheme, viewport=size, **options))
        return contexts[-1].new_page()

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def tab_to() -> Callable[[Any, str], None]:
    """`tab_to(page, "#files")`: press Tab until that element has the focus."""

    def press(page: Any, selector: str) -> None:
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.locator(f"{selector}:focus").count():
                return
        raise AssertionError(f"Tab does not reach {selector}")

    return press


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: Tags = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="session")
def tags_of() -> Callable[[Path], Tags]:
    """`tags_of(path)`: the start tags of an HTML file with their attributes."""

    def read(path: Path) -> Tags:
        parser = _Tags()
        parser.feed(path.read_text(encoding="utf-8"))
        return parser.found

    return read


@pytest.fixture
def start_program() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `python -m PROGRAM …` in groups of their own and leaves none of them behind."""
    started: list[subprocess.Popen[str]] = []

    def begin(*command: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()
        process.wait()


@pytest.fixture(scope="session")
def detector_directory(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector on the model's own network, with random weights, that takes most boxes for dogs."""
    import torch

    from xlan.vision.detector.directory import save_lite
    from xlan.vision.detector.lite import LiteDetector, LiteHeads
    from xlan.vision.detector.lite_settings import LiteDetectorSpec
    from xlan.vision.grid import load_vision

    vision = model_directory / "vision.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        heads = LiteHeads(
            LiteDetectorSpec("efficientnet-lite0", ("dog", "cat"), input_size=64, channels=8, rounds=1, hidden=16)
        )
        torch.nn.init.zeros_(heads.class_of_hidden.weight)
        torch.nn.init.zeros_(heads.class_of_feature.weight)
        torch.nn.init.constant_(heads.rpn_logits.bias, 3.0)  # type: ignore[arg-type]
        heads.class_of_hidden.bias.data = torch.tensor([2.0, -2.0, 0.0])
    folder = tmp_path_factory.mktemp("detectors") / "detector"
    save_lite(folder, LiteDetector(load_vision(vision)[0], heads), vision=vision)
    return folder
