"""`xlan push`: what arrives on the Hub, what the card says, and what is refused."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.errors import DataError, HubError
from xlan.hub.card import evaluation, join_card, split_card, with_metadata
from xlan.pretrained import find_model, read_model_directory
from xlan.publishing import push_model

# The HTTP library of huggingface_hub warns of how that uploads.
pytestmark = pytest.mark.filterwarnings("default:Use 'content=:DeprecationWarning")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


@pytest.fixture
def repo(hub: Any, published: Any) -> type:
    """The class of repositories of the loopback Hub."""
    return type(published)


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(HubError) as caught:
        push_model(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("log_in")
def test_what_was_pushed_is_what_is_loaded(hub: Any, small_model: Path, files: dict[str, bytes]) -> None:
    done = push_model(small_model, "bob/dogs", message="first")
    there = hub.repos["bob/dogs"]
    assert there.messages == ["first"]
    assert not there.private
    assert {name: body for name, body in there.files().items() if name != "README.md"} == {
        name: body for name, body in files.items() if name != "README.md"
    }
    assert done.url == f"{hub.url}/bob/dogs"
    assert done.pinned == f"bob/dogs@{there.refs['main']}"
    assert sorted(done.files) == sorted(there.files())
    assert read_model_directory(done.pinned).identity == read_model_directory(small_model).identity


@pytest.mark.usefixtures("log_in")
def test_only_the_files_of_a_model_are_uploaded(hub: Any, small_model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(small_model, tmp_path / "model")
    (copy / "secret.env").write_text("TOKEN=1")
    (copy / "checkpoint.pt").write_bytes(b"pickle")
    push_model(copy, "bob/dogs")
    assert sorted(hub.repos["bob/dogs"].files()) == ["README.md", "config.json", "model.safetensors", "vocab.json"]
    assert (copy / "README.md").read_text() == "# A small model\n\nFor tests.\n"  # the local card stays as it was


@pytest.mark.usefixtures("log_in")
def test_a_private_repository_and_a_branch(hub: Any, small_model: Path) -> None:
    push_model(small_model, "bob/dogs", private=True, revision="trial/1")
    there = hub.repos["bob/dogs"]
    assert there.private
    assert "config.json" in there.files("trial/1")
    assert "config.json" not in there.files("main")
    push_model(small_model, "bob/dogs", private=True)
    assert find_model("bob/dogs").is_dir()


@pytest.mark.usefixtures("log_in", "published")
def test_private_is_never_put_where_everybody_sees_it(hub: Any, small_model: Path) -> None:
    before = dict(hub.repos["ann/dogs"].commits)
    assert "already exists and is public; nothing was uploaded" in refused(small_model, "ann/dogs", private=True)
    assert hub.repos["ann/dogs"].commits == before


def test_without_a_token_nothing_happens(hub: Any, small_model: Path, published: Any) -> None:
    before = dict(published.commits)
    assert "log in with `hf auth login` or set HF_TOKEN" in refused(small_model, "bob/dogs")
    assert "log in with `hf auth login` or set HF_TOKEN" in refused(small_model, "ann/dogs")
    assert list(hub.repos) == ["ann/dogs"]
    assert published.commits == before


@pytest.mark.usefixtures("log_in", "published")
@pytest.mark.parametrize(
    ("step", "status", "says"),
    [
        ("/preupload/main", 403, "the token has no right to write this repository (403)"),
        ("/objects/batch", 403, "the token has no right to write this repository (403)"),
        ("/commit/main", 500, "the Hub has an internal error (500)"),
        ("/commit/main", 412, "the Hub refuses the request (412)"),
    ],
)
def test_a_refused_upload_changes_nothing(
    hub: Any, small_model: Path, step: str, status: int, says: str, published: Any
) -> None:
    before = dict(published.commits)
    hub.status[step] = (status, {})
    assert says in refused(small_model, "ann/dogs")
    assert published.commits == before


@pytest.mark.usefixtures("log_in")
def test_metadata_that_the_hub_does_not_take(hub: Any, small_model: Path, published: Any) -> None:
    before = dict(published.commits)
    hub.errors.append('"license" must be one of mit')
    said = 'Invalid metadata in README.md. - "license" must be one of mit'
    assert said in refused(small_model, "ann/dogs", license="my own")
    assert published.commits == before


@pytest.mark.usefixtures("log_in")
def test_a_server_that_is_down(hub: Any, small_model: Path) -> None:
    hub.close()
    assert "the Hub cannot be reached" in refused(small_model, "bob/dogs")


@pytest.mark.usefixtures("log_in")
def test_what_is_not_a_whole_model_is_not_uploaded(hub: Any, small_model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(small_model, tmp_path / "model")
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(bytes(weights))
    with pytest.raises(Exception, match="damaged"):
        push_model(copy, "bob/dogs")
    assert "only a model directory on this machine" in refused(tmp_path / "none", "bob/dogs")
    assert "expected owner/name" in refused(small_model, "dogs")
    assert hub.requests == []


@pytest.mark.usefixtures("log_in")
def test_the_card_has_what_was_given_and_the_library_of_the_hub_reads_it(
    hub: Any, small_model: Path, tmp_path: Path
) -> None:
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps({"BLEU-4": 0.28, "CIDEr": 0.896, "SPICE": None, "SPICE-spaCy parser": "x"}))
    arguments = ["--license", "cc-by-4.0", "--dataset", "coco", "--scores", str(scores), "--scored-on", "COCO, test"]
    done = CliRunner().invoke(app, ["push", str(small_model), "bob/dogs", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"xlan caption --model bob/dogs@{hub.repos['bob/dogs'].refs['main']} PHOTO" in done.stdout
    from huggingface_hub import ModelCard

    card = ModelCard(hub.repos["bob/dogs"].files()["README.md"].decode())
    assert card.text.strip() == "# A small model\n\nFor tests."
    assert card.data.pipeline_tag == "image-to-text"
    assert card.data.library_name == "xlan"
    assert card.data.license == "cc-by-4.0"
    assert card.data.datasets == ["coco"]
    found = {(result.metric_name, result.metric_value, result.dataset_name) for result in card.data.eval_results}
    assert found == {("BLEU-4", 0.28, "COCO, test"), ("CIDEr", 0.896, "COCO, test")}
    assert {result.metric_type for result in card.data.eval_results} == {"bleu", "cider"}


@pytest.mark.usefixtures("log_in")
def test_nothing_is_claimed_that_nobody_said(hub: Any, small_model: Path) -> None:
    push_model(small_model, "bob/dogs")
    metadata, _ = split_card(hub.repos["bob/dogs"].files()["README.md"].decode())
    assert sorted(metadata) == ["library_name", "pipeline_tag", "tags"]


def test_metadata_of_the_card_stays() -> None:
    card = "---\nlicense: mit\nlanguage: en\ntags: [dogs]\n---\n# Dogs\n"
    metadata, body = split_card(with_metadata(card, datasets=["coco"]))
    assert metadata == {
        "pipeline_tag": "image-to-text",
        "library_name": "xlan",
        "tags": ["dogs"],
        "license": "mit",
        "language": "en",
        "datasets": ["coco"],
    }
    assert body == "# Dogs\n"


def test_new_scores_replace_those_on_the_same_data_and_no_others() -> None:
    def scored(card: str, value: float, data: str) -> str:
        return with_metadata(card, results=evaluation({"CIDEr": value}, data, source="s"), name="dogs")

    card = scored(scored(scored("# Dogs\n", 0.5, "A"), 0.6, "B"), 0.7, "A")
    (entry,) = split_card(card)[0]["model-index"]
    assert entry["name"] == "dogs"
    found = [(one["dataset"]["name"], one["metrics"][0]["value"]) for one in entry["results"]]
    assert found == [("B", 0.6), ("A", 0.7)]


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ([], "expected the scores that `xlan evaluate --json` prints"),
        ({}, "no metric was computed"),
        ({"CIDEr": None}, "no metric was computed"),
        ({"CIDEr": float("nan")}, "CIDEr is nan"),
        ({"CIDEr": True}, "'CIDEr' is not a score"),
        ({"CIDEr": {"a": 1}}, "'CIDEr' is not a score"),
    ],
)
def test_scores_that_are_none(scores: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        evaluation(scores, "COCO", source="scores.json")


@pytest.mark.parametrize("head", ["a: [", "- a\n- b", "1: 2"])
def test_a_card_with_broken_metadata(head: str) -> None:
    with pytest.raises(DataError, match=r"README\.md: the metadata at its top"):
        with_metadata(f"---\n{head}\n---\n# Dogs\n")


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine too
@given(
    metadata=st.dictionaries(st.text("abcdef-_", min_size=1), _values, max_size=4), body=st.text("ab-\n# ", max_size=30)
)
def test_a_card_is_read_as_it_was_written(metadata: dict[str, Any], body: str) -> None:
    assert split_card(join_card(metadata, body)) == (metadata, body.lstrip("\n"))


@pytest.mark.parametrize("arguments", [["--scores", "x.json"], ["--scored-on", "COCO"]])
def test_scores_and_their_data_come_together(arguments: list[str], small_model: Path) -> None:
    done = CliRunner().invoke(app, ["push", str(small_model), "bob/dogs", *arguments])
    assert done.exit_code == 2


@pytest.mark.slow
def test_the_command_line_loads_a_model_by_name_with_the_settings_of_the_environment(
    hub: Any, repo: type, model_directory: Path, tmp_path: Path
) -> None:
    """A process of its own, so that nothing of this test but the environment tells it where the Hub is."""
    hub.repos["ann/photos"] = repo()
    commit = hub.repos["ann/photos"].commit({path.name: path.read_bytes() for path in model_directory.iterdir()})
    Image.new("RGB", (80, 60), "green").save(tmp_path / "photo.jpg")
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-m", "xlan", "caption", "--model", f"ann/photos@{commit}", "photo.jpg"]

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **settings, **more}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    first = run()
    assert first.returncode == 0, first.stderr
    assert hub.requests
    assert all("ann/photos" in path for _, path in hub.requests)
    hub.requests.clear()
    offline = run(HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout) == (0, first.stdout)
    assert hub.requests == []
