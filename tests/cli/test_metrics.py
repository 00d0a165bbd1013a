from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.errors import DataError
from xlan.metrics.docfreq import DocumentFrequencies
from xlan.text.vocab import Vocabulary
from xlan.training.scoring import cider_reward


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    images = [
        {"cocoid": 1, "filename": "1.jpg", "split": "train", "sentences": [{"raw": "A dog."}, {"raw": "A red dog"}]},
        {"cocoid": 2, "filename": "2.jpg", "split": "restval", "sentences": [{"raw": "A cat!"}]},
        {"cocoid": 3, "filename": "3.jpg", "split": "test", "sentences": [{"raw": "A bus"}]},
    ]
    (tmp_path / "d.json").write_text(json.dumps({"images": images}))
    Vocabulary.from_words(["a", "dog", "cat"]).save(tmp_path / "vocab.json")
    return [str(tmp_path / "d.json"), str(tmp_path / "vocab.json"), str(tmp_path / "df.safetensors")]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["metrics", *arguments])


def test_a_table_of_the_training_captions_is_written(files: list[str]) -> None:
    outcome = run("build-df", *files)
    assert outcome.exit_code == 0, outcome.exception
    assert "from 2 images; end of sentence (id 2) counts as a word" in outcome.stdout
    table = DocumentFrequencies.load(files[2])
    assert table.includes_end
    assert table.vocabulary_size == 7
    # <pad> <bos> <eos> <unk> a dog cat: the end and "a" are in both images, "red" is unknown.
    assert table.counts[0].tolist() == [0, 0, 2, 1, 2, 1, 1]


def test_leaving_the_end_out_is_recorded(files: list[str]) -> None:
    outcome = run("build-df", *files, "--no-end")
    assert "end of sentence (id 2) does not count as a word" in outcome.stdout
    assert not DocumentFrequencies.load(files[2]).includes_end


def test_a_split_without_images_is_named(files: list[str]) -> None:
    outcome = run("build-df", *files, "--split", "val")
    assert "split 'val' has no images" in str(outcome.exception)


def test_training_reads_the_table(files: list[str]) -> None:
    run("build-df", *files)
    reward = cider_reward({"x": [[4, 5, 2]]}, Vocabulary.load(files[1]), document_frequency=files[2])
    assert reward.table.documents == 2


@pytest.mark.parametrize("words", [["a", "cat", "dog"], ["a", "dog", "cat", "bus"]], ids=["same size", "other size"])
def test_training_refuses_a_table_of_another_vocabulary(files: list[str], words: list[str]) -> None:
    run("build-df", *files)
    with pytest.raises(DataError, match=r"counted with another vocabulary .* xlan metrics build-df"):
        cider_reward({"x": [[4, 5, 2]]}, Vocabulary.from_words(words), document_frequency=files[2])


def test_the_commands_are_listed() -> None:
    outcome = run("--help")
    assert "build-df" in outcome.stdout
    assert "setup-spice" in outcome.stdout
