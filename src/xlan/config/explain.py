"""One pydantic complaint in the user's words: the dotted key, what is wrong, what is allowed."""

from __future__ import annotations

import difflib
from typing import Any, get_args, get_origin

from xlan.config.schema import OptimizerConfig, RunConfig, ScheduleConfig, Section


def explain(detail: Any, root: type[Section] = RunConfig) -> str:
    """One line for one entry of `ValidationError.errors()` of a configuration of kind `root`."""
    location = [str(part) for part in detail["loc"]]
    section = _section_at(location[:-1], root)
    # A discriminated section puts its tag into the location; the user's file has no such key.
    key = ".".join(part for i, part in enumerate(location) if not _is_tag(location, i))
    kind = detail["type"]
    if kind == "extra_forbidden" and section is not None:
        allowed = sorted(section.model_fields)
        close = difflib.get_close_matches(location[-1], allowed, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        return f"unknown key '{key}'; {hint}allowed: {', '.join(allowed)}"
    if kind in ("model_type", "dict_type"):
        return f"'{key}': expected keys and values, got {_got(detail['input'])}"
    if kind == "tuple_type":
        return f"'{key}': expected a list in brackets, got {_got(detail['input'])}"
    if kind == "missing":
        return f"missing key '{key}'"
    if kind == "literal_error":
        return f"'{key}' is {detail['input']!r}; allowed: {detail['ctx']['expected']}"
    if kind.startswith("union_tag"):
        tags = detail.get("ctx", {}).get("expected_tags") or ", ".join(_names(ScheduleConfig))
        got = detail.get("ctx", {}).get("tag")
        return f"'{key}.name' is {got!r}; allowed: {tags}" if got else f"'{key}' needs a 'name'; allowed: {tags}"
    if kind == "value_error":
        return f"{detail['ctx']['error']}"
    return f"'{key}': {detail['msg'][0].lower()}{detail['msg'][1:]}, got {detail['input']!r}"


def _got(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def _names(union: Any) -> list[str]:
    """What `name` may be in a section of several kinds."""
    return [str(kind.model_fields["name"].default) for kind in _sections_in(union)]


def _is_tag(location: list[str], i: int) -> bool:
    return i > 0 and location[i] in _TAGGED.get(location[i - 1], ())


def _section_at(location: list[str], root: type[Section]) -> type[Section] | None:
    """The section class a location leads into."""
    here: list[type[Section]] = [root]
    named = False
    for i, part in enumerate(location):
        if _is_tag(location, i):
            here = [kind for kind in here if kind.model_fields["name"].default == part]
            continue
        if named:  # a name that the user chose, such as a row of a study
            named = False
            continue
        field = here[0].model_fields.get(part) if here else None
        if field is None:
            return None
        here = _sections_in(field.annotation)
        named = get_origin(field.annotation) is dict
    return here[0] if here else None


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]


_TAGGED = {"optimizer": _names(OptimizerConfig), "schedule": _names(ScheduleConfig)}
