"""Checks of settings that were read from files: JSON may hold any type where a number is expected. Without torch."""

from __future__ import annotations

from collections.abc import Sequence

from xlan.errors import ModelError


def check_whole(**values: object) -> None:
    """Refuse what is not a whole number; 256.0 and true are not."""
    for name, value in values.items():
        if type(value) is not int:
            raise ModelError(f"{name} must be a whole number, got {value!r}")


def check_numbers(**values: object) -> None:
    """Refuse what is not a number; true is not."""
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{name} must be a number, got {value!r}")


def check_flags(**values: object) -> None:
    """Refuse what is neither true nor false."""
    for name, value in values.items():
        if type(value) is not bool:
            raise ModelError(f"{name} must be true or false, got {value!r}")


def check_text(**values: object) -> None:
    """Refuse what is not text."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise ModelError(f"{name} must be text, got {value!r}")


def check_choice(choices: Sequence[object], **values: object) -> None:
    """Refuse what is none of `choices`; of another type, too: true is not 1."""
    for name, value in values.items():
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise ModelError(f"{name} must be {' or '.join(map(str, choices))}, got {value!r}")


def check_lists(**values: object) -> None:
    """Refuse what is not a list."""
    for name, value in values.items():
        if not isinstance(value, list | tuple):
            raise ModelError(f"{name} must be a list, got {value!r}")


def check_objects(**values: object) -> None:
    """Refuse what is not an object of JSON, a dictionary."""
    for name, value in values.items():
        if not isinstance(value, dict):
            raise ModelError(f"{name} must be an object, got {value!r}")
