"""Help texts in plain lines, which fit 80 columns with whole names: `-o, --output FILE  Write to this file.`"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

# What typer calls the types of values → what a help text calls the value.
_VALUES = {"path": "PATH", "str": "TEXT", "int": "N", "float": "X"}


class PlainCommand(TyperCommand):
    """A command whose help names values as PATH or N, not by their Python types."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments and the options."""
        records = [(param, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            rows = [record for param, record in records if param.param_type_name == kind and record is not None]
            if kind == "argument":
                rows = [(name.partition(" <")[0].upper(), text) for name, text in rows]
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(re.sub(r"<([^>]+)>", _value, name), text) for name, text in rows])

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """`[OPTIONS] PICTURE...`."""
        return [re.sub(r"[{}]", "", piece).upper() for piece in super().collect_usage_pieces(ctx)]


class PlainGroup(TyperGroup):
    """A group of commands whose help shows the first sentence of each, however long."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the commands."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in found if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _value(found: re.Match[str]) -> str:
    """`<path>`, `<list[str]>`, `<int range>`, `<auto|onnx>` → PATH, TEXT, N, auto|onnx."""
    name = found[1].removeprefix("list[").removesuffix("]").removesuffix(" range").lower()
    return _VALUES.get(name, name)


def use_plain_help(app: typer.Typer) -> None:
    """Give every command of the application, and of the groups in it, the plain form."""
    app.info.cls = PlainGroup
    for command in app.registered_commands:
        command.cls = PlainCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_plain_help(group.typer_instance)
