"""Reading, overriding, saving and comparing configurations.

A YAML file may come from anybody: its size and depth are limited, and aliases (which can expand to any size or refer to
themselves) and repeated keys are errors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from xlan.config.detector import DetectorConfig
from xlan.config.explain import explain
from xlan.config.schema import RESUME_MAY_CHANGE, RunConfig, Section
from xlan.errors import ConfigError, DataError
from xlan.files import read_text, write_text

MAX_CONFIG_BYTES = 1 << 20
MAX_DEPTH = 16
S = TypeVar("S", bound=Section)


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file, apply `key=value` overrides (dotted keys, YAML values) and check the result.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong; the message names it and what is allowed.
    """
    return _load(RunConfig, path, overrides)


def load_detector_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> DetectorConfig:
    """The same for a run that trains a detector."""
    return _load(DetectorConfig, path, overrides)


def _load(kind: type[S], path: str | os.PathLike[str], overrides: Sequence[str]) -> S:
    value = _mapping(Path(path))
    for override in overrides:
        _apply_override(value, override)
    return _checked(kind, value, source=os.fspath(path))


def read_yaml_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys and values of a YAML file, as the strict models of a schema want them.

    Raises:
        ConfigError: the file cannot be read, or is not a mapping of plain values.
    """
    plain: dict[str, Any] = _plain(_mapping(Path(path)))
    return plain


def _mapping(source: Path) -> dict[str, Any]:
    try:
        text = read_text(source, max_bytes=MAX_CONFIG_BYTES)
    except DataError as error:
        raise ConfigError(str(error)) from None
    value = _read_yaml(text, source=str(source))
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: expected keys and values, got {type(value).__name__}")
    return value


def parse_config(value: dict[str, Any], *, source: str = "configuration") -> RunConfig:
    """Check a configuration given as nested dictionaries.

    Raises:
        ConfigError: a key or value is wrong.
    """
    return _checked(RunConfig, value, source=source)


def _checked(kind: type[S], value: dict[str, Any], *, source: str) -> S:
    try:
        return kind.model_validate(_plain(value))
    except ValidationError as error:
        reasons = "; ".join(explain(detail, kind) for detail in error.errors())
        raise ConfigError(f"{source}: {reasons}") from None


def dump_config(config: RunConfig) -> dict[str, Any]:
    """The resolved configuration as plain values, every default written out."""
    dumped: dict[str, Any] = config.model_dump(mode="json")
    return dumped


def save_config(config: RunConfig, path: str | os.PathLike[str]) -> None:
    """Write the resolved configuration as YAML that `load_config` reads back, atomically."""
    write_text(path, yaml.safe_dump(dump_config(config), sort_keys=False, allow_unicode=True))


def changed_keys(old: dict[str, Any], new: dict[str, Any], *, free: Sequence[str] = RESUME_MAY_CHANGE) -> list[str]:
    """Dotted keys whose values differ between two dumped configurations.

    Args:
        old: one of them.
        new: the other.
        free: keys and sections that do not count; by default those that a resumed run may change.
    """
    flat_old, flat_new = _flatten(old), _flatten(new)
    keys = [key for key in {**flat_old, **flat_new} if flat_old.get(key) != flat_new.get(key)]
    return sorted(key for key in keys if not any(f"{key}.".startswith(f"{one}.") for one in free))


def _flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            flat.update(_flatten(inner, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = inner
    return flat


def _apply_override(value: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r:.80}: expected key=value, for example train.epochs=3")
    parsed = _read_yaml(text, source=f"override {override!r:.80}")
    node = value
    for part in parts[:-1]:
        inner = node.get(part)
        if inner is None:
            inner = node[part] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r:.80}: {part!r} is a value, not a section")
        node = inner
    node[parts[-1]] = parsed


def _plain(value: Any) -> Any:
    """YAML has lists only and takes 1e-5 for text; give the strict models what is meant."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return tuple(_plain(inner) for inner in value)
    if isinstance(value, str) and _is_number(value):
        return float(value)
    return value


def _is_number(text: str) -> bool:
    """Whether `text` is a number in exponent notation, which YAML 1.1 takes for text unless it has a dot and a sign."""
    if "e" not in text.lower() or not text[:1].isdigit():
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Loader(yaml.SafeLoader):
    """Plain values only: no aliases, no repeated keys, nesting as deep as a configuration can be."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"aliases are not supported, write the value out instead of *{event.anchor}",
                problem_mark=event.start_mark,
            )
        if self.depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested deeper than {MAX_DEPTH} levels",
                problem_mark=self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"key '{key.value}' is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


def _read_yaml(text: str, *, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:  # a number with thousands of digits, an impossible date
        raise ConfigError(f"{source}: not valid YAML: {error}") from None
