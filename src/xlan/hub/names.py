"""Names of models on the Hub: `owner/name`, or `owner/name@revision` for a branch, a tag or a commit."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from xlan.errors import HubError

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@(.*))?", re.DOTALL)
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./+-]{0,198}[A-Za-z0-9_+-])?")


@dataclass(frozen=True)
class HubName:
    """A model on the Hub.

    Attributes:
        repository: `owner/name`.
        revision: a branch, a tag or a commit; None is the default branch.
    """

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"

    def at(self, revision: str | None) -> HubName:
        """The same model at this revision.

        Raises:
            HubError: the revision is not valid, or the name already has another one.
        """
        if revision is None:
            return self
        if not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision:
            raise HubError(f"revision: expected a branch, a tag or a commit, got {revision!r}")
        if self.revision not in (None, revision):
            raise HubError(f"{self}: names revision {self.revision!r}, and revision {revision!r} was given; give one")
        return replace(self, revision=revision)


def parse_name(text: str | os.PathLike[str]) -> HubName | None:
    """`"owner/name[@revision]"` as a `HubName`; None for everything else, such as an absolute path.

    Raises:
        HubError: what follows the `@` is not a revision.
    """
    given = text.as_posix() if isinstance(text, Path) else os.fspath(text)
    found = _NAME.fullmatch(given)
    if found is None or "--" in found[1] or ".." in found[1]:
        return None
    name = HubName(found[1])
    return name if found[2] is None else name.at(found[2])
