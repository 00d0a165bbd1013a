"""Files of one repository on the Hub, one at a time, by their exact names; nothing else of it is ever fetched.

`huggingface_hub` does the transfer: its cache (`HF_HOME`, `HF_HUB_CACHE`), its token (`HF_TOKEN`, `hf auth login`), its
offline mode (`HF_HUB_OFFLINE`), its address (`HF_ENDPOINT`); a transfer that was cut is resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlan import __version__
from xlan.errors import HubError, MissingExtraError, one_line
from xlan.hub.names import HubName

AGENT = {"library_name": "xlan", "library_version": __version__}  # the user agent
KNOCK_SECONDS = 10
_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


class Repository:
    """A model repository at one commit, which the first file that is fetched decides.

    Args:
        name: which model, and which revision of it.

    Raises:
        MissingExtraError: `huggingface_hub` is not installed.
    """

    def __init__(self, name: HubName) -> None:
        self.name = name
        self._hub = import_hub(f"{name}: no such folder here; loading it from the Hub")
        self._folder: Path | None = None
        self._files: list[str] = []
        self._new: list[str] = []

    @property
    def folder(self) -> Path:
        """Where the files are; known after the first one."""
        assert self._folder is not None, "fetch a file first"
        return self._folder

    def get(self, file: str) -> Path:
        """Fetch a file, unless it is in the cache.

        Raises:
            HubError: it cannot be fetched; the message says why.
        """
        path = self._fetch(file)
        if path is None:
            raise HubError(f"{self.name}: has no {file} on the Hub; it is not a model of xlan")
        return path

    def find(self, file: str, *, before: str) -> Path | None:
        """Fetch a file that the repository may have, unless it is in the cache; None when there is none.

        Args:
            file: its name.
            before: a file that is always fetched later. Where the Hub cannot be reached, a cache that has it is
                complete, and `file` is absent when it is not there.

        Raises:
            HubError: the repository cannot be reached.
        """
        return self._fetch(file, complete=(self.folder / before).is_file())

    def _fetch(self, file: str, *, complete: bool = False) -> Path | None:
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        revision = self.name.revision if self._folder is None else self._folder.name
        cached = self._hub.try_to_load_from_cache(self.name.repository, file, revision=revision)
        if self._folder is not None and cached is not None and not isinstance(cached, str):
            return None  # an earlier look showed that this commit has no such file
        with hub_problems(str(self.name)):
            if self._folder is None and not isinstance(cached, str):
                self._knock()
            try:
                path = Path(self._hub.hf_hub_download(self.name.repository, file, revision=revision, **AGENT))
            except LocalEntryNotFoundError:
                if complete:
                    return None
                raise
            except EntryNotFoundError:
                return None
        if self._folder is None:
            self._folder = path.parents[file.count("/")]
        self._files.append(file)
        if cached != str(path):
            self._new.append(file)
        return path

    def _knock(self) -> None:
        """Send one request, so that an unreachable Hub is noticed at once and not after half a minute of retries."""
        from huggingface_hub.errors import HfHubHTTPError

        with contextlib.suppress(HfHubHTTPError):  # the Hub answers; the download reports or handles the rest
            self._hub.HfApi(**AGENT).model_info(self.name.repository, timeout=KNOCK_SECONDS)

    def forget(self, *, damaged: str | None = None) -> None:
        """Take files out of the cached snapshot, so that no incomplete model stays there.

        Args:
            damaged: remove all files from the snapshot, and this one from the cache; by default only those that are
                new. Files that were fetched whole are kept elsewhere in the cache and need not be fetched again.
        """
        if self._folder is None:
            return
        if damaged is not None:
            (self._folder / damaged).resolve().unlink(missing_ok=True)
        gone = [self._folder / file for file in (self._new if damaged is None else self._files)]
        for path in gone:
            path.unlink(missing_ok=True)
        for folder in sorted({path.parent for path in gone}, reverse=True):
            with contextlib.suppress(OSError):  # it has other files
                folder.rmdir()


def import_hub(what: str) -> Any:
    """The module `huggingface_hub`.

    Raises:
        MissingExtraError: it is not installed; `what` is what needs it.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise MissingExtraError(what, "hub") from None
    return huggingface_hub


@contextlib.contextmanager
def hub_problems(name: str, *, writing: bool = False) -> Iterator[None]:
    """Turn what `huggingface_hub` raises inside into a `HubError` of one line; a full disk stays an OSError."""
    from huggingface_hub import errors

    try:
        yield
    except HubError:
        raise
    except OSError as error:
        if error.errno is not None and not isinstance(error, errors.OfflineModeIsEnabled):
            raise
        raise HubError(f"{name}: {_explain(error, writing=writing)}") from error
    except (_transport_error(), errors.EntryNotFoundError, ValueError, RuntimeError) as error:
        raise HubError(f"{name}: {_explain(error, writing=writing)}") from error


def _transport_error() -> type[Exception]:
    """The base class of the errors of its HTTP library, which differs between versions."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _explain(error: BaseException, *, writing: bool) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"access is restricted; accept its terms on its page on the Hub, then {_LOG_IN}"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the Hub has the model, but not this revision; expected one of its branches, tags or commits"
    if isinstance(error, errors.RepositoryNotFoundError) and not writing:
        return f"no such folder here and no such model on the Hub; check the name or, for a private model, {_LOG_IN}"
    if isinstance(error, errors.HfHubHTTPError):
        return _explain_status(error.response.status_code, error.server_message, writing=writing)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "not in the cache, or not all of it, and HF_HUB_OFFLINE forbids fetching it; unset it or fetch it once"
    if isinstance(error, errors.LocalEntryNotFoundError | RuntimeError) and error.__cause__ is not None:
        return _explain(error.__cause__, writing=writing)
    if isinstance(error, _transport_error()):
        kept = "nothing was changed there" if writing else "and it is not in the cache"
        return f"the Hub cannot be reached ({one_line(error).rstrip('.')}), {kept}; check the connection and try again"
    what = "upload" if writing else "download"
    return f"the {what} failed ({one_line(error).rstrip('.')}); try again"


def _explain_status(status: int, message: str | None, *, writing: bool) -> str:
    need = "write" if writing else "read"
    if status in (401, 404):
        return f"the Hub refuses access ({status}); {_LOG_IN}, with a token that may {need} this repository"
    if status == 403:
        return f"the token has no right to {need} this repository (403); use one that has"
    if status == 429:
        return "too many requests to the Hub (429); wait a while and try again"
    if status >= 500:
        return f"the Hub has an internal error ({status}); try again later"
    said = f": {' '.join(message.split())[:200]}" if message else ""
    return f"the Hub refuses the request ({status}){said}"
