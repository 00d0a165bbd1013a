"""The metadata of a model card: YAML between two lines of `---` at its top, as the Hub reads it.

License, datasets and scores appear only where they were given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from xlan.errors import DataError

TASK = "image-to-text"
_FENCE = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def split_card(text: str) -> tuple[dict[str, Any], str]:
    """The metadata of a card (empty where it has none), and the text below.

    Raises:
        DataError: it begins with metadata that is not valid.
    """
    found = _FENCE.match(text)
    if found is None:
        return {}, text
    try:
        metadata = yaml.safe_load(found[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split())[:200]
        raise DataError(f"README.md: the metadata at its top is not valid YAML: {line}") from None
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        raise DataError("README.md: the metadata at its top must be keys and values")
    return metadata, text[found.end() :].lstrip("\n")


def join_card(metadata: Mapping[str, Any], body: str) -> str:
    """A card with metadata at its top."""
    head = yaml.safe_dump(dict(metadata), sort_keys=False, allow_unicode=True, width=100)
    return f"---\n{head}---\n\n{body}"


def with_metadata(
    text: str,
    *,
    license: str | None = None,  # noqa: A002  what everybody calls it
    datasets: Sequence[str] = (),
    results: Mapping[str, Any] | None = None,
    name: str = "",
) -> str:
    """A card with what the Hub shows and searches by; what it already says stays unless given again.

    Args:
        text: the card, with or without metadata.
        license: identifier of the license of the weights, such as `apache-2.0`.
        datasets: what the model was trained on, by their names on the Hub.
        results: one entry of `results` of its model index, see `evaluation`; it replaces one on the same dataset.
        name: the model, for its model index.

    Raises:
        DataError: the card's own metadata is not valid.
    """
    metadata, body = split_card(text)
    merged: dict[str, Any] = {"pipeline_tag": TASK, "library_name": "xlan", "tags": ["image-captioning"], **metadata}
    if license is not None:
        merged["license"] = license
    if datasets:
        merged["datasets"] = list(datasets)
    if results is not None:
        merged["model-index"] = _with_results(merged.get("model-index"), results, name)
    return join_card(merged, body)


def _with_results(index: Any, results: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    entries = index if isinstance(index, list) and index and isinstance(index[0], dict) else [{"name": name}]
    first, *others = entries
    before = first.get("results")
    kept = [
        one
        for one in (before if isinstance(before, list) else [])
        if not (isinstance(one, dict) and one.get("dataset") == results["dataset"])
    ]
    return [{"name": name, **first, "results": [*kept, dict(results)]}, *others]


def evaluation(scores: Any, dataset: str, *, source: str) -> dict[str, Any]:
    """What `xlan evaluate --json` printed, as one entry of `results` of a model index.

    Args:
        scores: the JSON value; a metric that was not computed (null) is left out.
        dataset: on which pictures, in words ("COCO, Karpathy's test split").
        source: the file, for errors.

    Raises:
        DataError: it holds no scores.
    """
    if not isinstance(scores, dict):
        raise DataError(f"{source}: expected the scores that `xlan evaluate --json` prints, an object of numbers")
    numbers = {
        name: value for name, value in scores.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    strange = [name for name, value in scores.items() if name not in numbers and not isinstance(value, str | None)]
    if strange:
        raise DataError(f"{source}: {strange[0]!r} is not a score; expected what `xlan evaluate --json` prints")
    if not numbers:
        raise DataError(f"{source}: no metric was computed in it; expected what `xlan evaluate --json` prints")
    bad = [name for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        raise DataError(f"{source}: {bad[0]} is {numbers[bad[0]]}; expected a finite number")
    slug = re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-")
    if not slug:
        raise DataError(f"expected the name of the data that was scored, got {dataset!r}")
    metrics = [
        {"type": re.sub(r"[^a-z]+", "_", name.lower()).strip("_"), "name": name, "value": value}
        for name, value in numbers.items()
    ]
    return {
        "task": {"type": TASK, "name": "Image Captioning"},
        "dataset": {"type": slug, "name": dataset},
        "metrics": metrics,
    }
