"""Models by name: what is fetched, what is kept, and what is said on the Hub's bad days."""

from __future__ import annotations

import builtins
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xlan
from xlan.errors import HubError, MissingExtraError, ModelError
from xlan.hub.names import HubName, parse_name
from xlan.pretrained import find_model, read_model_directory

# A busy machine is no failure.
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODEL_FILES = {"config.json", "model.safetensors", "vocab.json", "README.md"}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def snapshots(tmp_path: Path) -> list[Path]:
    """What looks like a model directory in the cache."""
    return sorted((tmp_path / "cache").glob("models--*/snapshots/*"))


def refused(name: str = "ann/dogs", **options: Any) -> str:
    with pytest.raises(HubError) as caught:
        find_model(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(name)
    return message


def test_a_model_is_loaded_by_its_name(published: Any, hub: Any, files: dict[str, bytes]) -> None:
    loaded = xlan.from_pretrained("ann/dogs")
    assert loaded.vocabulary.words[-1] == "grass"
    folder = find_model("ann/dogs")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert xlan.Captioner.from_pretrained("ann/dogs", engine="torch").vocabulary.words == loaded.vocabulary.words


def test_nothing_but_the_files_of_a_model_is_fetched_and_each_of_them_once(published: Any, hub: Any) -> None:
    find_model("ann/dogs")
    assert sorted(hub.fetched()) == sorted(MODEL_FILES)
    hub.requests.clear()
    find_model("ann/dogs")
    assert hub.requests == [("HEAD", "/ann/dogs/resolve/main/config.json")]  # whether there is a new version


def test_a_commit_is_asked_for_once_and_never_again(published: Any, hub: Any) -> None:
    commit = published.refs["main"]
    find_model(f"ann/dogs@{commit}")
    hub.requests.clear()
    assert find_model("ann/dogs", revision=commit).name == commit
    assert hub.requests == []


def test_a_revision_pins_the_model(published: Any, files: dict[str, bytes]) -> None:
    published.refs["v1"] = published.refs["main"]
    published.commit({"README.md": b"newer"})
    assert read_model_directory("ann/dogs").card == "newer"
    assert read_model_directory("ann/dogs@v1").card == files["README.md"].decode()
    assert read_model_directory(Path("ann/dogs"), revision="v1").card == files["README.md"].decode()
    assert "not this revision" in refused("ann/dogs@v2")


def test_a_folder_that_exists_wins_and_has_no_revisions(
    published: Any, hub: Any, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "dogs").symlink_to(small_model)
    monkeypatch.chdir(tmp_path)
    assert find_model("ann/dogs") == Path("ann/dogs")
    assert hub.requests == []
    assert refused(revision="v1") == "ann/dogs: a folder has no revisions; got revision 'v1'"
    with pytest.raises(ModelError, match="not the name of a model on the Hub"):
        find_model(tmp_path / "absent", revision="v1")
    with pytest.raises(ModelError, match="comes with xlan has no revisions"):
        xlan.Captioner.from_pretrained(revision="v1")


def test_offline_the_cached_copy_is_used(published: Any, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = ("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(*offline)
    assert "HF_HUB_OFFLINE forbids" in refused()
    monkeypatch.setattr(offline[0], False)
    before = find_model("ann/dogs")
    monkeypatch.setattr(*offline)
    hub.requests.clear()
    assert find_model("ann/dogs") == before
    assert hub.requests == []


def test_offline_a_copy_that_another_program_made_is_used_too(
    published: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import hf_hub_download

    for name in MODEL_FILES - {"README.md"}:
        hf_hub_download("ann/dogs", name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert read_model_directory("ann/dogs").card == ""


def test_a_server_that_is_down(published: Any, hub: Any, tmp_path: Path) -> None:
    hub.close()
    assert "the Hub cannot be reached" in refused()
    assert hub.clock.slept == []  # somebody who mistyped the name of a folder is not kept waiting
    assert snapshots(tmp_path) == []


def test_a_server_that_is_down_does_not_matter_for_a_cached_copy(published: Any, hub: Any) -> None:
    before = find_model("ann/dogs")
    hub.close()
    assert find_model("ann/dogs") == before


def test_no_such_model(hub: Any, tmp_path: Path) -> None:
    assert refused("ann/cats") == (
        "ann/cats: no such folder here and no such model on the Hub; check the name or, for a private model, "
        "log in with `hf auth login` or set HF_TOKEN"
    )
    assert snapshots(tmp_path) == []


def test_a_private_model_needs_the_right_token(published: Any, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    published.private = True
    assert "for a private model, log in" in refused()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    message = refused()
    assert "the Hub refuses access (401)" in message
    assert "hf_wrong" not in message
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert find_model("ann/dogs").is_dir()


def test_a_gated_model_says_what_to_do(published: Any) -> None:
    published.gated = True
    assert "accept its terms" in refused()


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (403, "the token has no right to read this repository (403)"),
        (429, "too many requests to the Hub (429)"),
        (503, "the Hub has an internal error (503)"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_refusal_is_one_line_and_leaves_no_half_model(
    published: Any, hub: Any, tmp_path: Path, status: int, says: str, file: str
) -> None:
    hub.status[f"/{file}"] = (status, {})
    assert says in refused()
    assert snapshots(tmp_path) == []
    hub.status.clear()
    assert find_model("ann/dogs").is_dir()


def test_a_cut_transfer_is_resumed(published: Any, hub: Any, files: dict[str, bytes]) -> None:
    hub.cut_once["/model.safetensors"] = 1000
    assert (find_model("ann/dogs") / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert hub.fetched().count("model.safetensors") == 2


def test_a_transfer_that_is_always_cut(published: Any, hub: Any, tmp_path: Path) -> None:
    hub.cut["/model.safetensors"] = 1000
    assert "the Hub cannot be reached" in refused()
    assert snapshots(tmp_path) == []
    hub.cut.clear()
    hub.requests.clear()
    find_model("ann/dogs")
    assert hub.fetched() == ["model.safetensors"]  # what was whole is not fetched again


def test_content_that_is_not_what_config_json_says(
    published: Any, hub: Any, tmp_path: Path, files: dict[str, bytes]
) -> None:
    damaged = bytearray(files["model.safetensors"])
    damaged[-1] ^= 1
    published.commit({"model.safetensors": bytes(damaged)})
    message = refused()
    assert "model.safetensors: damaged (its SHA-256 differs)" in message
    assert "tell the owner of the model" in message
    assert snapshots(tmp_path) == []
    assert not list(
        (tmp_path / "cache").rglob("blobs/" + json.loads(files["config.json"])["files"]["vocab.json"]["sha256"])
    )
    refused()
    assert hub.fetched().count("model.safetensors") == 2  # a damaged file is not kept
    published.commit({"model.safetensors": files["model.safetensors"]})
    assert find_model("ann/dogs").is_dir()


def test_a_file_that_is_missing_there(published: Any, tmp_path: Path, files: dict[str, bytes]) -> None:
    published.commits[published.refs["main"]].pop("vocab.json")
    assert refused() == "ann/dogs: has no vocab.json on the Hub; it is not a model of xlan"
    assert snapshots(tmp_path) == []


@pytest.mark.parametrize(
    "config", [b"{}", b'{"model_type": "bert"}', b"[", b'{"format": 99, "model": {}, "files": {}}']
)
def test_models_of_others_are_refused_before_their_weights_are_fetched(
    published: Any, hub: Any, tmp_path: Path, config: bytes
) -> None:
    published.commit({"config.json": config})
    assert "not a model that this version of xlan can read: config.json" in refused()
    assert hub.fetched() == ["config.json"]
    assert snapshots(tmp_path) == []


def test_names_in_config_json_do_not_choose_what_is_fetched(published: Any, hub: Any, files: dict[str, bytes]) -> None:
    config = json.loads(files["config.json"])
    config["files"]["../../evil.json"] = config["files"]["code.py"] = {"bytes": 1, "sha256": "0"}
    published.commit({"config.json": json.dumps(config).encode()})
    find_model("ann/dogs")
    assert sorted(hub.fetched()) == sorted(MODEL_FILES)


@pytest.mark.usefixtures("log_in")
def test_weights_behind_a_redirect_and_no_token_follows_it(published: Any, hub: Any, files: dict[str, bytes]) -> None:
    hub.redirect.append("/model.safetensors")
    assert (find_model("ann/dogs") / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert [path for _, path in hub.requests if path.startswith("/cdn/")]
    assert hub.tokens
    assert not [path for path in hub.tokens if path.startswith("/cdn/")]


def test_a_detector_comes_with_its_model_and_is_checked(published: Any, hub: Any, tmp_path: Path) -> None:
    settings = {"file": {"bytes": 3, "sha256": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}}
    published.commit(
        {
            "detector/detector.json": json.dumps(settings).encode(),
            "detector/detector.safetensors": b"foo",
            "detector/notes.txt": b"no",
        }
    )
    folder = find_model("ann/dogs")
    assert (folder / "detector" / "detector.safetensors").read_bytes() == b"foo"
    assert not (folder / "detector" / "notes.txt").exists()
    published.commit({"detector/detector.safetensors": b"bar"})
    assert "detector.safetensors: damaged" in refused()
    assert snapshots(tmp_path) == [folder]


def test_a_new_version_that_cannot_be_fetched_leaves_the_old_one(published: Any, hub: Any, tmp_path: Path) -> None:
    before = find_model("ann/dogs")
    published.commit({"vocab.json": b"[]", "config.json": b"{}"})
    refused()
    assert snapshots(tmp_path) == [before]
    assert find_model(f"ann/dogs@{before.name}") == before


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == "huggingface_hub":
            raise ModuleNotFoundError(f"No module named {name!r}", name="huggingface_hub")
        return real(name, *rest, **options)

    for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError) as caught:
        xlan.Captioner.from_pretrained("ann/dogs")
    assert str(caught.value) == (
        "ann/dogs: no such folder here; loading it from the Hub needs packages that are not installed; "
        'type: pip install "xlan[hub]"'
    )


@pytest.mark.parametrize(
    "text",
    [
        "dogs",
        "/ann/dogs",
        "./ann/dogs",
        "../dogs",
        "ann/dogs/best",
        "~/dogs",
        "ann//dogs",
        "ann/",
        "a--b/c",
        "a..b/c",
        "",
    ],
)
def test_paths_are_not_names(text: str) -> None:
    assert parse_name(text) is None


@pytest.mark.parametrize("revision", ["", "../x", "a/../b", "/x", "x/", "a b", "x\n", "-x"])
def test_revisions_that_are_none(revision: str) -> None:
    with pytest.raises(HubError, match="expected a branch, a tag or a commit"):
        parse_name(f"ann/dogs@{revision}")


def test_two_revisions_are_one_too_many() -> None:
    with pytest.raises(HubError, match="names revision 'v1', and revision 'v2' was given"):
        HubName("ann/dogs", "v1").at("v2")


_part = st.lists(st.text("aZ0_", min_size=1, max_size=5), min_size=1, max_size=3).map(
    lambda parts: "x" + "-".join(parts)
)


@QUICK
@given(owner=_part, name=_part, revision=st.none() | st.sampled_from(["main", "v1.0", "refs/pr/1", "a" * 40]))
def test_a_name_is_read_as_it_is_written(owner: str, name: str, revision: str | None) -> None:
    written = HubName(f"{owner}/{name}", revision)
    assert parse_name(str(written)) == written


@QUICK
@given(st.text(max_size=40))
def test_any_text_is_a_name_or_none_or_a_clear_error(text: str) -> None:
    try:
        found = parse_name(text)
    except HubError:
        return
    assert found is None or str(found) == text
