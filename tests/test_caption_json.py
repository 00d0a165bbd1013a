"""Captions as JSON."""

from __future__ import annotations

import json

import numpy as np

from xlan.caption_json import caption_record
from xlan.types import Caption, Look, Thing, Word


def test_everything_is_there_and_json_can_hold_it() -> None:
    spatial, gate = np.array([0.1, 0.9], np.float32), np.array([0.123456789], np.float32)
    word = Word("dog", np.float32(0.5), spatial, gate, (("cat", np.float32(0.25)),), 0.75)  # type: ignore[arg-type]
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1 / 3, 1]], np.float32)
    record = caption_record(Caption("dog", -1.5, 0.4, (word,), (Caption("cat", -2.0, 0.3, ()),), boxes))
    assert json.loads(json.dumps(record)) == {
        "version": 1,
        "caption": "dog",
        "confidence": 0.4,
        "score": -1.5,
        "words": [
            {
                "text": "dog",
                "probability": 0.5,
                "confidence": 0.75,
                "runners_up": [{"text": "cat", "probability": 0.25}],
                "spatial": [0.1, 0.9],
                "channel": [0.123457],
                "looked_at": None,
            }
        ],
        "others": [{"caption": "cat", "confidence": 0.3, "score": -2.0}],
        "boxes": [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.333333, 1.0]],
        "things": [],
    }


def test_what_was_not_asked_for_is_null() -> None:
    record = caption_record(Caption("dog", -1.5, 0.4, (Word("dog", 0.123456789),)), digits=2)
    expected = {"text": "dog", "probability": 0.12, "confidence": None, "runners_up": []}
    expected |= {"spatial": None, "channel": None, "looked_at": None}
    assert record["words"] == [expected]
    assert (record["boxes"], record["others"]) == (None, [])


def test_what_a_word_looked_at_has_box_and_name() -> None:
    box = (0.0, 0.25, 1 / 3, 1.0)
    words = (
        Word("dog", 0.5, look=Look(box, 0.4, 2, 0)),
        Word("runs", 0.5, look=Look(box, 0.1, 1)),
    )
    things = (Thing("dog", box, 0.9, "wet"), Thing("ball", box, 0.8))
    record = json.loads(json.dumps(caption_record(Caption("", 0.0, 0.4, words, things=things), explained=False)))
    rounded = [0.0, 0.25, 0.333333, 1.0]
    first, second = (word["looked_at"] for word in record["words"])
    assert first == {"box": rounded, "share": 0.4, "region": 2, "thing": 0, "name": "dog", "attribute": "wet"}
    assert second == {"box": rounded, "share": 0.1, "region": 1, "thing": None, "name": None, "attribute": None}
    assert record["things"][0] == {"name": "dog", "attribute": "wet", "score": 0.9, "box": rounded}
    assert record["things"][1]["attribute"] is None


def test_explanations_can_be_left_out() -> None:
    word = Word("dog", 0.5, np.ones(1, np.float32), np.ones(2, np.float32), (("cat", 0.25),))
    record = caption_record(Caption("dog", -1.5, 0.4, (word,), (), np.zeros((1, 4), np.float32)), explained=False)
    (only,) = record["words"]
    assert (only["spatial"], only["channel"], record["boxes"]) == (None, None, None)
    assert only["runners_up"] == []
