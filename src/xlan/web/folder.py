"""A folder that captions photos inside the browser: page, scripts, runtime and model, all of them plain files.

index.html, static/     the page of `xlan serve`, with a worker in place of the server
sw.js                   keeps all files in the browser, so that the page works without a network
runtime/                onnxruntime-web, its WebAssembly packed with gzip
model/                  an export directory, which `xlan caption --model FOLDER/model` reads too
web.json                format version, the model's name, rules that the scripts need, files of the runtime
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xlan.confidence.evidence import CAPTION_FEATURES, CLEARLY_SEEN, LEAST_DOUBT, NAMING, WORD_FEATURES
from xlan.errors import ModelError
from xlan.export.directory import ExportDirectory, read_export
from xlan.files import sync_file, write_json
from xlan.folders import check_free, whole_folder
from xlan.options import EXPLAINED_RUNNERS_UP, CaptionOptions
from xlan.pages.layout import STYLE
from xlan.text.content import IRREGULAR, STOP_WORDS, repeatable_ids
from xlan.text.endings import bad_ending_ids
from xlan.vision.familiar import FALL, NEIGHBOURS
from xlan.web.runtime import VERSION, RuntimeFile, packed_runtime, read_runtime

WEB = "web.json"
FORMAT = 1
MODEL = "model"
_STATIC = Path(__file__).parent / "static"
# What confidence.js has to know of `xlan.confidence`.
RULES: dict[str, Any] = {
    "stop_words": sorted(STOP_WORDS),
    "irregular": IRREGULAR,
    "neighbours": NEIGHBOURS,
    "fall": FALL,
    "naming": NAMING,
    "least_doubt": LEAST_DOUBT,
    "clearly_seen": CLEARLY_SEEN,
    "features": {"word": WORD_FEATURES, "caption": CAPTION_FEATURES},
}
_SERVED = Path(__file__).parent.parent / "serving" / "static"
# Scripts of the server's page that are used as they are; those of the same name in our own folder take its place.
_SHARED = ("app.js", "basics.js", "explanation.js", "heat.js", "pictures.js")

# Nothing from other hosts; `wasm-unsafe-eval` allows compiling WebAssembly, and nothing else.
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'none'"
)
_LOADING = """<div class="loading" id="loading" hidden>
  <p class="soft" role="status"></p>
  <progress max="1" aria-label="Loading the model"></progress>
</div>
<p class="warn" id="fault" role="alert" hidden></p>
"""
_PROMISE = "Photos stay in this browser: it finds the words itself. They are sent nowhere, and the page works offline."
_LOADING_STYLE = (
    ".loading{margin:12px 0}.loading p{margin:0 0 4px}.loading progress{width:100%;accent-color:var(--mark)}\n"
)


def check_place(target: Path, *, replace: bool) -> None:
    """Refuse to write a page where something else is."""
    check_free(target, WEB, "a page of xlan export", replace=replace)


def write_web(
    exported: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    name: str,
    runtime: dict[str, bytes] | None = None,
    replace: bool = False,
) -> int:
    """Write the folder beside its final place, and move it there when it is whole.

    Args:
        exported: an export directory whose model captions pictures.
        target: the folder to write; its parent is created when missing.
        name: what the page calls the model.
        runtime: what `read_runtime` gave; by default it is looked for in the current folder.
        replace: replace a page that already exists.

    Returns:
        The size of the folder in bytes.

    Raises:
        ModelError: the model does not caption pictures, the runtime is missing, or something else is at that place.
    """
    place = Path(target)
    check_place(place, replace=replace)
    found = read_export(exported, verify=True)
    if found.vision is None:
        raise ModelError(f"{exported}: this model captions region features, not pictures; a page cannot use it")
    files = read_runtime() if runtime is None else runtime
    with whole_folder(place) as temporary:
        shutil.copytree(found.path, temporary / MODEL)
        packed = packed_runtime(files)
        _write(temporary / "runtime", packed.items())
        _write(temporary / "static", _scripts())
        _write(temporary, [("index.html", _page())])
        write_json(temporary / WEB, _about(found, name, packed))
        _write(temporary, [("sw.js", _service_worker(temporary))])
        for file in _files(temporary):
            sync_file(file)
    return sum(file.stat().st_size for file in _files(place))


def _write(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files:
        (folder / name).write_bytes(content)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _scripts() -> list[tuple[str, bytes]]:
    own = [path for path in sorted(_STATIC.glob("*.js")) if path.name != "sw.js"]
    style = STYLE + (_SERVED / "app.css").read_text(encoding="utf-8") + _LOADING_STYLE
    shared = [_SERVED / name for name in _SHARED]
    return [("app.css", style.encode()), *((path.name, path.read_bytes()) for path in [*shared, *own])]


def _page() -> bytes:
    """The page of `xlan serve`, without what only a server can do."""
    page = (_SERVED / "index.html").read_text(encoding="utf-8")
    changes = (
        (r'<meta name="referrer"', f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n\\g<0>'),
        (r"<noscript>.*?</noscript>", '<noscript><p class="warn">This page needs JavaScript.</p></noscript>'),
        (r'(<p class="promise soft">).*?</p>', f"\\1{_PROMISE}</p>"),
        (r"\s*<fieldset>.*?</fieldset>", ""),
        (r'\s*<div class="row" data-method="samples".*?</div>', ""),
        (r'\s*<div class="row">\s*<label class="wide">Words that must appear.*?</div>', ""),
        (r'<p class="notice', f"{_LOADING}\\g<0>"),
        (r' <a href="docs">.*?</a>', ""),
        (r'<dialog id="ask".*?</dialog>\s*', ""),
    )
    for pattern, text in changes:
        page, count = re.subn(pattern, text, page, flags=re.DOTALL)
        if count != 1:
            raise ModelError(f"the page of xlan serve has changed: {pattern!r} was found {count} times, expected once")
    return page.encode()


def _about(found: ExportDirectory, name: str, runtime: dict[str, bytes]) -> dict[str, Any]:
    assert found.vision is not None
    return {
        "format": FORMAT,
        "name": name,
        "runtime_version": VERSION,
        "runtime": {file: asdict(RuntimeFile.of(content)) for file, content in runtime.items()},
        "decoding": {
            "max_length": CaptionOptions().max_length,
            "runners_up": EXPLAINED_RUNNERS_UP,
            "bad_endings": sorted(bad_ending_ids(found.vocabulary)),
            "may_repeat": sorted(repeatable_ids(found.vocabulary)),
            "min_side": found.vision.min_side,
        },
        "rules": RULES,
    }


def _service_worker(folder: Path) -> bytes:
    files = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    script = (_STATIC / "sw.js").read_text(encoding="utf-8")
    script = script.replace('"@FILES@"', ", ".join(json.dumps(name) for name in files))
    return script.replace("@VERSION@", digest.hexdigest()[:16]).encode()
