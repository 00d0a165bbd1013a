"""SPICE: the unmodified official scorer (Anderson et al., 2016) on Java 8 to 21.

The jar comes from the installed `pycocoevalcap` package and CoreNLP 3.6.0 from the user (`spice_corenlp.py`). What the
launcher adds, found by running the jar:

- Nothing is written beside the jar: class path instead of `-jar`, own temporary folder, cache of parsed reference
  captions (an LMDB file, which makes later runs on the same references much faster) in the user's cache folder.
- Java 9 and later hide what the cache's serialiser reaches into: `--add-opens` for six packages.
- Java 15 and later have no JavaScript engine, which the jar uses to indent its answer: `spice_java/`.
- A time limit, a drained stderr, an answer that is checked entry by entry.

Not tested: the scores themselves. No test has CoreNLP's two jars, so no number of the official SPICE has been
reproduced by this launcher. The tests run the real jar, its LMDB cache and its answer on stand-ins for the CoreNLP
classes it calls, which find no tuple in any caption; Java 17 and 25 were used, Java 8, 11 and 21 were not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from xlan.errors import DataError, MetricError, MissingExtraError
from xlan.files import read_json, user_cache_dir
from xlan.metrics.ptb import tokenize
from xlan.metrics.spice_corenlp import find_corenlp
from xlan.metrics.spice_process import Outcome, find_java, run_to_end

Id = TypeVar("Id", bound=Hashable)

_MAIN_CLASS = "edu.anu.spice.SpiceScorer"
_OPENED = ("java.lang", "java.math", "java.net", "java.text", "java.util", "java.util.concurrent")
_FIRST_WITH_MODULES = 9
_FIRST_WITHOUT_JAVASCRIPT = 15
_MAX_ANSWER_BYTES = 1 << 30


class Spice:
    """The official SPICE. The constructor finds everything that is needed, so what is missing shows at once.

    Args:
        corenlp: folder with CoreNLP 3.6.0's two jars, or its zip file; None: where `xlan metrics setup-spice` put it.
        timeout: seconds for one call of `score`; parsing thousands of captions takes long, most of all the first time.
        max_heap: Java's memory limit, as `-Xmx` takes it.

    Raises:
        MissingExtraError: pycocoevalcap is not installed.
        MetricError: Java or CoreNLP is missing or unusable.
    """

    def __init__(self, corenlp: Path | None = None, *, timeout: float = 4 * 3600.0, max_heap: str = "8G") -> None:
        # Somebody who used the package's own downloader has CoreNLP among the package's jars.
        jars = [*_package_jars(), *find_corenlp(corenlp, otherwise=package_dir() / "spice" / "lib")]
        self._java = find_java()
        if self._java.version >= _FIRST_WITHOUT_JAVASCRIPT:
            jars.append(Path(__file__).parent / "spice_java" / "script-engine.jar")
        for jar in jars:
            if os.pathsep in str(jar):
                raise MetricError(f"{jar}: Java cannot use a path with {os.pathsep!r} in it; move the file elsewhere")
        self._class_path = os.pathsep.join(str(jar.resolve()) for jar in jars)
        self._cache = user_cache_dir() / "spice" / _cache_key(jars)
        self._timeout = timeout
        self._max_heap = max_heap

    def score(self, references: Mapping[Id, Sequence[str]], hypotheses: Mapping[Id, str]) -> tuple[float, list[float]]:
        """Corpus score (the mean over images) and each image's F1, in the order of `hypotheses`; all in 0–1.

        Captions are raw; they are tokenised before they are parsed, as coco-caption does for all its metrics.

        Raises:
            MetricError: ids differ, an image has no reference, or the scorer fails, takes too long or answers nonsense.
        """
        check_captions(references, hypotheses)
        # Numbers stand for the ids: the scorer would change what is neither a number nor a string.
        items = [
            {"image_id": number, "test": tokenize(text), "refs": [tokenize(ref) for ref in references[key]]}
            for number, (key, text) in enumerate(hypotheses.items())
        ]
        scores = self._run(items)
        return math.fsum(scores) / len(scores), scores

    def _run(self, items: list[dict[str, Any]]) -> list[float]:
        end = time.monotonic() + self._timeout
        with tempfile.TemporaryDirectory(prefix="xlan-spice-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (folder / "in.json").write_text(json.dumps(items), encoding="ascii")
            # The cache needs a native library that the package has for x86-64 only, and not for every C library.
            cached = platform.machine().lower() in ("x86_64", "amd64")
            outcome = run_to_end(self._command(folder, cached), folder=folder, timeout=self._timeout)
            if cached and outcome.status != 0 and "UnsatisfiedLinkError" in outcome.errors:
                left = max(0.0, end - time.monotonic())
                outcome = run_to_end(self._command(folder, False), folder=folder, timeout=left)
            if outcome.status != 0:
                raise MetricError(f"SPICE stopped: {_reason(outcome, self._max_heap)}")
            return _read_answer(folder / "out.json", len(items), outcome)

    def _command(self, folder: Path, cached: bool) -> list[str]:
        command = [str(self._java.executable), f"-Xmx{self._max_heap}", "-XX:-UsePerfData"]
        # Lower-casing and number formats must not depend on where the user lives.
        command += ["-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8", "-Djava.awt.headless=true"]
        command += [f"-Djava.io.tmpdir={folder}"]
        if self._java.version >= _FIRST_WITH_MODULES:
            command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        command += ["-cp", self._class_path, _MAIN_CLASS, str(folder / "in.json"), "-out", str(folder / "out.json")]
        if cached:
            self._cache.mkdir(parents=True, exist_ok=True)
            command += ["-cache", str(self._cache)]
        return [*command, "-silent"]


def check_captions(references: Mapping[Id, Sequence[str]], hypotheses: Mapping[Id, str]) -> None:
    """Refuse what no score can be computed from.

    Raises:
        MetricError: there is no caption, the two do not have the same ids, or an image has no reference.
    """
    if not hypotheses:
        raise MetricError("SPICE needs at least one caption, got none")
    if references.keys() != hypotheses.keys():
        odd = next(iter(references.keys() ^ hypotheses.keys()))
        side = "reference" if odd not in references else "hypothesis"
        raise MetricError(f"SPICE needs the same images on both sides: image {odd!r} has no {side}")
    for key in hypotheses:
        if isinstance(references[key], str) or not references[key]:
            raise MetricError(f"SPICE needs a list of at least one reference per image, image {key!r} has none")


def package_dir(what: str = "SPICE", extra: str = "metrics") -> Path:
    """The folder of the installed pycocoevalcap package, which `what` needs and `extra` brings.

    Raises:
        MissingExtraError: it is not installed.
    """
    spec = importlib.util.find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(what, extra)
    return Path(spec.submodule_search_locations[0])


def _package_jars() -> list[Path]:
    folder = package_dir() / "spice"
    jars = [*sorted(folder.glob("spice-1*.jar")), *sorted((folder / "lib").glob("*.jar"))]
    # CoreNLP may be among them; it is found elsewhere, so that only the one that was asked for counts.
    jars = [jar for jar in jars if not jar.name.startswith("stanford-corenlp")]
    if not jars or jars[0].parent != folder:
        raise MetricError(f"{folder}: no spice-1.0.jar; type: pip install --force-reinstall pycocoevalcap")
    return jars


def _cache_key(jars: Sequence[Path]) -> str:
    """Parses of one CoreNLP are never taken for those of another."""
    facts = "|".join(f"{jar.name} {jar.stat().st_size}" for jar in jars)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _reason(outcome: Outcome, max_heap: str) -> str:
    """The one line of a Java stack trace that a user can act on."""
    lines = [line.strip() for line in outcome.errors.splitlines() if line.strip()]
    for line in lines:
        if "OutOfMemoryError" in line or "Could not reserve enough space" in line:
            return f"Java had too little memory with -Xmx{max_heap} ({line})"
        if "ClassNotFoundException: edu.stanford" in line or "NoClassDefFoundError: edu/stanford" in line:
            return f"CoreNLP 3.6.0 is incomplete ({line}); type: xlan metrics setup-spice"
    if outcome.status < 0:
        return f"Java was killed by signal {-outcome.status}; often the system was short of memory"
    causes = [line for line in lines if "Exception" in line or "Error" in line] or lines[-1:]
    return f"exit status {outcome.status}, " + (causes[0][:300] if causes else "without a message")


def _read_answer(path: Path, count: int, outcome: Outcome) -> list[float]:
    try:
        answer = read_json(path, max_bytes=_MAX_ANSWER_BYTES)
    except DataError as error:
        raise MetricError(f"SPICE gave no valid output ({error}): {_reason(outcome, '')}") from None
    if not isinstance(answer, list) or len(answer) != count:
        got = f"{len(answer)} entries" if isinstance(answer, list) else type(answer).__name__
        raise MetricError(f"SPICE gave no valid output: expected a list of {count}, got {got}")
    scores: dict[int, float] = {}
    for entry in answer:
        number, score = _entry(entry)
        if number is None or score is None or not 0 <= number < count or number in scores:
            raise MetricError(f"SPICE gave no valid output: unexpected entry {json.dumps(entry)[:200]}")
        scores[number] = score
    return [scores[number] for number in range(count)]


def _entry(entry: object) -> tuple[int | None, float | None]:
    """An entry's number and F1 over all tuples; None for what is not there or out of range."""
    try:
        number, score = entry["image_id"], entry["scores"]["All"]["f"]  # type: ignore[index]
    except (TypeError, KeyError, IndexError):
        return None, None
    right_number = isinstance(number, int) and not isinstance(number, bool)
    right_score = isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1
    return number if right_number else None, float(score) if right_score else None
