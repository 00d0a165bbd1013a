"""Files → one commit of a repository on the Hub: all of them are there afterwards, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xlan.errors import HubError
from xlan.hub.names import HubName
from xlan.hub.repository import AGENT, hub_problems, import_hub


def upload(name: HubName, files: Mapping[str, Path | bytes], *, private: bool, message: str) -> tuple[str, HubName]:
    """Put files into a repository, which is created when there is none.

    Args:
        name: which repository; its revision is a branch, created when there is none.
        files: their names in the repository, and where they are or what they hold. Other files there stay.
        private: create the repository so that only its owner sees it; a public one that exists is refused.
        message: of the commit.

    Returns:
        The address of the repository, and its name with the commit that was made.

    Raises:
        HubError: it failed; nothing changed there, except that an empty repository or branch may have been created.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    hub = import_hub(f"{name}: uploading to the Hub")
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    api = hub.HfApi(**AGENT)
    with hub_problems(str(name), writing=True):
        try:
            is_private: bool | None = api.repo_info(name.repository).private
        except RepositoryNotFoundError:
            is_private = None
        if private and is_private is False:
            raise HubError(
                f"{name}: already exists and is public; nothing was uploaded. Make it private on the Hub first"
            )
        if is_private is None:
            try:
                api.create_repo(name.repository, private=private)
            except HfHubHTTPError as error:
                if error.response.status_code == 409:  # it exists, and this token may not see it
                    raise HubError(f"{name}: already exists, and your token has no access to it") from error
                raise
        if name.revision is not None:
            api.create_branch(name.repository, branch=name.revision, exist_ok=True)
        operations = [
            hub.CommitOperationAdd(path, str(content) if isinstance(content, Path) else content)
            for path, content in files.items()
        ]
        done = api.create_commit(
            name.repository, operations, commit_message=message, revision=name.revision, num_threads=2
        )
    return f"{api.endpoint}/{name.repository}", HubName(name.repository, str(done.oid))
