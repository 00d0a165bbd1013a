"""One set of words that a caption should not end on, for decoding, statistics and training."""

from __future__ import annotations

import ast
from pathlib import Path

from xlan.metrics.stats import caption_facts
from xlan.text.endings import BAD_ENDINGS, bad_ending_ids
from xlan.text.vocab import Vocabulary

SOURCE = Path(__file__).parents[2] / "src" / "xlan"


def test_ids_are_those_of_words_that_the_vocabulary_has() -> None:
    vocabulary = Vocabulary.build([["a", "dog", "near", "the", "sea"]], threshold=1)
    assert bad_ending_ids(vocabulary) == {vocabulary.id_of(word) for word in ("a", "near", "the")}


def test_statistics_count_every_one_of_them() -> None:
    assert all(caption_facts(f"a dog {word}").bad_ending for word in BAD_ENDINGS)
    assert not caption_facts("a dog").bad_ending


def test_no_second_set_exists() -> None:
    def is_one(node: ast.AST) -> bool:
        values = {item.value for item in getattr(node, "elts", []) if isinstance(item, ast.Constant)}
        return isinstance(node, ast.Tuple | ast.List | ast.Set) and {"a", "of", "with"} <= values

    homes = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(is_one(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    assert homes == ["text/endings.py"]
