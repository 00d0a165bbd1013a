"""Generated pages of the site: the command line, the Python names, the configuration, the model card, the changes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parent.parent
CARD = "src/xlan/models/default/README.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that the navigation does not name yet are added to the guides."""
    docs = Path(config.docs_dir)
    named = set(_leaves(config.nav))
    (guides,) = (entry["Guides"] for entry in config.nav or [] if "Guides" in entry)
    guides += sorted({path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - named)
    return config


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif nav:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(entry)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    generated = {
        "reference/cli.md": command_line(),
        "reference/api.md": python_names(),
        "reference/config.md": configuration(),
        "reference/default-model.md": (ROOT / CARD).read_text(encoding="utf-8"),
        "reference/changes.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    }
    for name, text in generated.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Links to the card's file in the repository lead to its page."""
    there = posixpath.relpath("reference/default-model.md", posixpath.dirname(page.file.src_uri) or ".")
    return markdown.replace(f"](../{CARD})", f"]({there})")


def command_line() -> str:
    """Every command with its arguments and options, from typer."""
    from xlan.cli.main import app

    root: Any = typer.main.get_command(app)
    parts = ["# Command line\n\n`xlan COMMAND --help` prints the same.\n"]
    for name, command in _commands(root, "xlan"):
        parts.append(f"## `{name}`\n\n{_paragraphs(command.help or '')}\n")
        rows = [
            f"| {_names(parameter)} | {_cell(parameter.help or '')} | {_default(parameter)} |"
            for parameter in command.params
            if not getattr(parameter, "hidden", False) and parameter.name != "help"
        ]
        if rows:
            parts.append("\n".join(["| option | meaning | default |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for key, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {key}")
        elif not command.hidden:
            yield f"{name} {key}", command


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).upper()}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if getattr(parameter, "is_flag", False):
        return names
    return f"{names} `{parameter.metavar or parameter.name.upper()}`"


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if callable(value) or value is None or value in ((), []) or getattr(parameter, "is_flag", False):
        return ""
    return f"`{value}`"


def python_names() -> str:
    """The public names, where they live."""
    import xlan

    head = (
        "# Python\n\nThese are the public names, imported as `from xlan import NAME`; everything else may move between "
        "releases.\n"
    )
    return head + "".join(f"\n::: {home}.{name}\n" for name, home in sorted(xlan._HOME.items()))


def configuration() -> str:
    """Every key of a training run, from the schema."""
    from xlan.config.schema import RunConfig

    parts = [
        "# Configuration\n\nThe keys of the YAML file that `xlan train` reads. `xlan train run.yaml train.epochs=3` "
        "changes single keys; an unknown key is an error that lists the allowed ones.\n"
    ]
    for name, section in _sections(RunConfig, ""):
        title = f"`{name}`" if name else "The file"
        parts.append(f"## {title}\n\n{_paragraphs(section.__doc__ or '')}\n")
        parts.append("| key | type | default | meaning |\n|---|---|---|---|")
        for key, field in section.model_fields.items():
            default = "required" if field.is_required() else _value(field)
            parts.append(f"| `{key}` | {_type(field.annotation)} | {default} | {_cell(field.description or '')} |")
        parts.append("")
    return "\n".join(parts)


def _sections(section: type[BaseModel], name: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield name, section
    for key, field in section.model_fields.items():
        inner = [kind for kind in _kinds(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for kind in inner:
            tag = f" (`name: {kind.model_fields['name'].default}`)" if len(inner) > 1 else ""
            for path, found in _sections(kind, f"{name}.{key}".lstrip(".")):
                yield f"{path}{tag}", found


def _kinds(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    if get_origin(annotation) is Literal or not inner:
        return [annotation]
    return [kind for part in inner for kind in _kinds(part)]


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    inner = [part for part in get_args(annotation) if part is not Ellipsis]
    if get_origin(annotation) in (tuple, list):
        return "list of " + " or ".join(dict.fromkeys(map(_type, inner)))
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return " or ".join(dict.fromkeys(_type(part) for part in inner if part is not type(None)))
    names = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}
    if annotation in names:
        return names[annotation]
    return _type(inner[0]) if inner else "any"


def _value(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{', '.join(map(str, value))}`" if isinstance(value, tuple | list) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\f", "").replace("\b", "").split("\n\n"))
