"""`xlan serve --detector`: answers say what is where, and what each word looked at."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlan.caption_json import caption_record
from xlan.options import EXPLAINED_RUNNERS_UP, CaptionOptions
from xlan.pipeline import Captioner


def ask(server: Any, body: bytes, query: str = "") -> Any:
    headers = {"Content-Type": "image/png"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{server.url}/v1/captions{query}", data=body, headers=headers), timeout=60
    ) as answer:
        return json.load(answer)


def test_an_explained_answer_names_things(
    naming_server: Any, picture: Callable[..., bytes], model_directory: Path, detector_directory: Path
) -> None:
    answer = ask(naming_server, picture(3), "?explain=true")
    assert answer["things"]
    assert {thing["name"] for thing in answer["things"]} == {"dog"}
    options = CaptionOptions(attention=True, runners_up=EXPLAINED_RUNNERS_UP)
    captioner = Captioner.from_pretrained(model_directory, detector=detector_directory)
    expected = json.loads(json.dumps(caption_record(captioner.caption(picture(3), options))))
    assert answer["things"] == expected["things"]
    for said, wanted in zip(answer["words"], expected["words"], strict=True):
        assert said["looked_at"] == wanted["looked_at"]


def test_a_plain_answer_does_not(naming_server: Any, picture: Callable[..., bytes]) -> None:
    answer = ask(naming_server, picture(3))
    assert answer["things"] == []
    assert [word["looked_at"] for word in answer["words"]] == [None] * len(answer["words"])
