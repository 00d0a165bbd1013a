"""A picture in, a sentence out: every kind of source, every way to look for words, and what is refused."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import xlan
from xlan import Captioner, CaptionOptions, Regions, TorchEngine, Vocabulary, build_model, from_pretrained
from xlan.confidence.evidence import Witness
from xlan.confidence.judge import Judge
from xlan.decoding import Forbid, MinLength, NoBadEnding, SuppressUnknown, beam_search
from xlan.errors import DecodingError, ImageError, ModelError, ShapeError
from xlan.text.content import content_words, is_content
from xlan.text.endings import BAD_ENDINGS
from xlan.text.vocab import SPECIAL_WORDS
from xlan.types import Caption
from xlan.vision.familiar import Familiar
from xlan.vision.image import ImageLimits
from xlan.vision.words import WordHead


@pytest.fixture(scope="module", params=["onnx", "torch"])
def captioner(model_directory: Path, request: pytest.FixtureRequest) -> Captioner:
    return Captioner.from_pretrained(model_directory, engine=request.param)


def noise(seed: int, size: tuple[int, int] = (70, 50)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def same(one: Caption, other: Caption) -> bool:
    return one.text == other.text and math.isclose(one.score, other.score, rel_tol=1e-4)


def test_every_kind_of_source_gives_the_same_caption(captioner: Captioner, tmp_path: Path) -> None:
    image = noise(0)
    path = tmp_path / "a.png"
    path.write_bytes(png(image))
    expected = captioner.caption(image)
    assert expected.text
    for source in (path, str(path), png(image), io.BytesIO(png(image)), np.asarray(image)):
        assert same(captioner.caption(source), expected), type(source)


def test_a_list_gives_a_list_in_order(captioner: Captioner) -> None:
    images = [noise(i) for i in range(5)]
    together = captioner.caption(images)
    assert isinstance(together, list)
    for image, caption in zip(images, together, strict=True):
        assert same(captioner.caption(image), caption)
    assert len({caption.score for caption in together}) > 1


def test_no_pictures_no_captions(captioner: Captioner) -> None:
    assert captioner.caption([]) == []
    assert captioner.caption_regions([]) == []


def test_numbers_of_a_caption_belong_together(captioner: Captioner) -> None:
    caption = captioner.caption(noise(1), CaptionOptions(beams=4))
    assert caption.text == " ".join(word.text for word in caption.words)
    assert len(caption.others) == 3
    scores = [caption.score, *(other.score for other in caption.others)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < word.probability < 1 for word in caption.words)
    words = sum(math.log(word.probability) for word in caption.words)
    assert caption.score <= words + 1e-5  # the end has a probability too
    assert 0 < caption.confidence < 1
    assert caption.boxes is None
    assert caption.words[0].spatial is None


def test_it_is_the_search_over_the_model(captioner: Captioner, model_directory: Path) -> None:
    prepared = captioner.prepare(noise(2))
    assert captioner.extractor is not None
    regions = captioner.extractor.extract([prepared])
    model = from_pretrained(model_directory).model
    encoded = model.encode(torch.from_numpy(np.stack([image.features for image in regions])))
    endings = [captioner.vocabulary.id_of(word) for word in ("a", "on", "the")]
    controls = [SuppressUnknown(), NoBadEnding(endings), MinLength(1), Forbid([0, 1])]
    found = beam_search(
        model,
        encoded,
        captioner.vocabulary.special,
        width=3,
        rule="released",
        max_length=20,
        controls=controls,
    ).best()[0]
    caption = captioner.caption(noise(2))
    assert caption.text == captioner.vocabulary.decode(found.ids)
    assert caption.confidence == pytest.approx(math.exp(found.total / len(found.ids)))


def test_attention_is_returned_when_asked_for(captioner: Captioner) -> None:
    caption = captioner.caption(noise(1), CaptionOptions(attention=True))
    assert caption.boxes is not None
    assert caption.boxes.shape == (5, 4)
    for word in caption.words:
        assert word.spatial is not None
        assert word.spatial.shape == (5,)
        assert word.spatial.sum() == pytest.approx(1, abs=1e-4)
        assert word.channel is not None
        assert (word.channel >= 0).all()
        assert (word.channel <= 1).all()


def test_runners_up_are_other_words_from_likely_to_less_likely(captioner: Captioner) -> None:
    caption = captioner.caption(noise(1), CaptionOptions(beams=1, runners_up=4))
    for word in caption.words:
        others = [text for text, _ in word.runners_up]
        probabilities = [probability for _, probability in word.runners_up]
        assert len(set(others)) == 4
        assert word.text not in others
        assert probabilities == sorted(probabilities, reverse=True)
        assert word.probability + sum(probabilities) <= 1 + 1e-5
    assert not set(captioner.vocabulary.words[:4]) & {text for word in caption.words for text, _ in word.runners_up}


def test_runners_up_change_nothing_else(captioner: Captioner) -> None:
    plain = captioner.caption(noise(1))
    assert all(not word.runners_up for word in plain.words)
    asked = captioner.caption(noise(1), CaptionOptions(runners_up=10_000))
    assert same(plain, asked)
    most = len(captioner.vocabulary.words) - 5
    assert {len(word.runners_up) for word in asked.words} == {most}


def test_padding_changes_nothing(captioner: Captioner) -> None:
    assert captioner.extractor is not None
    one, two = captioner.extractor.extract([captioner.prepare(noise(i)) for i in (3, 4)])
    short = replace(one, features=one.features[:2], boxes=one.boxes[:2])
    assert same(captioner.caption_regions([short])[0], captioner.caption_regions([short, two])[0])


def test_required_words_appear(captioner: Captioner) -> None:
    options = CaptionOptions(must=("cat", "Dog|dogs", "the grass"))
    for caption in captioner.caption([noise(0), noise(1)], options):
        words = caption.text.split()
        assert "cat" in words
        assert {"dog", "dogs"} & set(words)
        assert "the grass" in caption.text


@pytest.mark.parametrize(
    ("must", "message"),
    [
        ("zebra", "must: the model does not know the word 'zebra'"),
        *((f"a {word}|dog", f"must: the model does not know the word '{word}'") for word in SPECIAL_WORDS),
        ("dog|", "must: expected a word, or words separated by |, got 'dog|'"),
        ("", "must: expected a word"),
    ],
)
def test_words_that_cannot_appear_are_refused(captioner: Captioner, must: str, message: str) -> None:
    with pytest.raises(DecodingError, match=message.replace("|", r"\|")):
        captioner.check(CaptionOptions(must=(must,)))


@pytest.mark.parametrize("options", [{"beams": 0}, {"samples": -1}, {"runners_up": -1}])
def test_impossible_numbers_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(DecodingError, match=r"expected .* got"):
        CaptionOptions(**options)


def test_captions_do_not_end_badly_and_hold_no_special_words(captioner: Captioner) -> None:
    images = [noise(i) for i in range(8)]
    for options in (CaptionOptions(beams=3), CaptionOptions(samples=4, temperature=2.0)):
        for caption in captioner.caption(images, options):
            for one in (caption, *caption.others):
                assert "<" not in one.text
                assert one.text.split()[-1] not in BAD_ENDINGS


def test_samples_depend_on_the_seed_and_not_on_the_batch(captioner: Captioner) -> None:
    options = CaptionOptions(samples=3, seed=7)
    images = [noise(i) for i in range(3)]
    together = captioner.caption(images, options)
    for image, caption in zip(images, together, strict=True):
        alone = captioner.caption(image, options)
        assert [alone.text, *(o.text for o in alone.others)] == [caption.text, *(o.text for o in caption.others)]
    other = captioner.caption(images[0], replace(options, seed=8))
    assert {other.text, *(o.text for o in other.others)} != {together[0].text, *(o.text for o in together[0].others)}


def test_many_pictures_come_in_order_with_the_broken_ones_named(captioner: Captioner) -> None:
    pictures = [(f"p{i}", b"PK\x03\x04" if i in (2, 5) else png(noise(i))) for i in range(7)]
    results = list(captioner.caption_many(pictures, batch_size=3, threads=2))
    assert [name for name, _ in results] == [f"p{i}" for i in range(7)]
    for (name, result), (_, data) in zip(results, pictures, strict=True):
        if name in ("p2", "p5"):
            assert isinstance(result, ImageError)
            assert str(result) == f"{name}: is not a picture but a ZIP archive"
        else:
            assert isinstance(result, Caption)
            assert same(result, captioner.caption(data))


def test_many_pictures_are_read_as_they_are_needed(captioner: Captioner) -> None:
    read = 0

    def endless() -> Iterator[tuple[str, Image.Image]]:
        nonlocal read
        while True:
            read += 1
            yield str(read), noise(0)

    results = captioner.caption_many(endless(), batch_size=2, threads=1)
    for _ in range(5):
        next(results)
    assert read <= 5 + 2 + 4 + 1
    results.close()


def test_limits_reach_the_pictures(captioner: Captioner) -> None:
    ((_, result),) = captioner.caption_many([("big", noise(0))], limits=ImageLimits(max_pixels=100))
    assert "big: claims 50×70 pixels, more than the limit of 100 pixels" in str(result)


def test_a_picture_that_cannot_be_used_is_named(captioner: Captioner, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"none\.jpg: no such file"):
        captioner.caption(tmp_path / "none.jpg")


def test_odd_pictures_get_a_caption(captioner: Captioner) -> None:
    odd = [Image.new("1", (1, 1)), Image.new("RGB", (10000, 3)), Image.new("CMYK", (5, 5)), Image.new("I;16", (9, 9))]
    for caption in captioner.caption(odd):
        assert caption.text


def test_a_model_without_vision_says_so() -> None:
    words = Vocabulary.from_words(["dog"])
    model = build_model("xlan-tiny", vocab_size=len(words), feature_dim=8)
    captioner = Captioner(TorchEngine(model, words.special), words)
    with pytest.raises(
        ModelError,
        match=r"captions region features, not pictures: its directory has no vision.*; add one with `xlan pack`",
    ):
        captioner.caption(noise(0))
    regions = Regions(np.ones((3, 8), np.float32), np.zeros((3, 4), np.float32))
    assert captioner.caption_regions([regions])[0].words
    with pytest.raises(ShapeError, match=r"regions of image 1: expected features \[N, 8\], got \[3, 9\]"):
        captioner.caption_regions([regions, replace(regions, features=np.ones((3, 9), np.float32))])


def test_vision_of_another_width_is_refused(captioner: Captioner) -> None:
    model = build_model("xlan-tiny", vocab_size=11, feature_dim=8)
    with pytest.raises(ModelError, match="the extractor makes features 1280 wide, the model expects 8"):
        Captioner(TorchEngine(model, captioner.vocabulary.special), captioner.vocabulary, captioner.extractor)


def test_familiar_pictures_of_another_width_are_refused(captioner: Captioner) -> None:
    familiar = Familiar(np.eye(16, dtype=np.float32), 0.1)
    with pytest.raises(ModelError, match="familiar pictures have features 16 wide, the model expects 1280"):
        Captioner(captioner.engine, captioner.vocabulary, captioner.extractor, Judge(Witness(familiar=familiar)))


def test_a_package_without_a_model_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("xlan.pretrained.SHIPPED", tmp_path / "none")
    with pytest.raises(ModelError, match=r"ships no trained model; give a model directory \(--model DIR\)"):
        Captioner.from_pretrained()


def test_the_model_in_the_package_is_the_default(monkeypatch: pytest.MonkeyPatch, model_directory: Path) -> None:
    monkeypatch.setattr("xlan.pretrained.SHIPPED", model_directory)
    assert Captioner.from_pretrained().caption(noise(0)).text


def test_nothing_is_left_random(captioner: Captioner) -> None:
    torch.manual_seed(1)
    first = captioner.caption(noise(0), CaptionOptions(samples=2))
    torch.manual_seed(2)
    assert captioner.caption(noise(0), CaptionOptions(samples=2)).text == first.text
    if isinstance(captioner.engine, TorchEngine):
        assert not captioner.engine.model.training


def test_public_names() -> None:
    assert xlan.Captioner is Captioner
    assert xlan.Caption is Caption


def test_starting_does_not_load_the_compiler(model_directory: Path, tmp_path: Path) -> None:
    """torch's compiler takes longer to import than everything else together, and captioning does not use it."""
    code = "import sys; from xlan import Captioner; "
    code += "Captioner.from_pretrained(sys.argv[1], engine='torch').caption(sys.argv[2]); "
    code += "print('torch._dynamo' in sys.modules)"
    noise(0).save(tmp_path / "a.png")
    command = [sys.executable, "-c", code, str(model_directory), str(tmp_path / "a.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_the_code_of_the_page_runs(
    model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parent.parent / "docs" / "caption.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holiday").mkdir()
    for i, name in enumerate(("photo.jpg", "a.jpg", "b.jpg", "holiday/beach.jpg")):
        noise(i).save(name)
    monkeypatch.setattr("xlan.pretrained.SHIPPED", model_directory)
    exec(code, {})
    assert "beach.jpg " in capsys.readouterr().out


def test_options_by_name(captioner: Captioner) -> None:
    image = noise(1)
    assert captioner.caption(image, beams=1, max_length=4) == captioner.caption(
        image, CaptionOptions(beams=1, max_length=4)
    )
    changed = captioner.caption(image, CaptionOptions(beams=1), must="dog")
    assert "dog" in changed.text.split()
    with pytest.raises(DecodingError, match="'beam': no such option; the options are beams, samples"):
        captioner.caption(image, beam=3)
    with pytest.raises(DecodingError, match="temperature has an effect only together with samples"):
        captioner.caption(image, temperature=0.5)


def test_tensors_and_channels_first(captioner: Captioner) -> None:
    pixels = np.asarray(noise(3))
    expected = captioner.caption(pixels)
    for other in (
        torch.from_numpy(pixels.copy()),
        pixels.transpose(2, 0, 1),
        torch.from_numpy(pixels.copy()).permute(2, 0, 1),
    ):
        assert same(captioner.caption(other), expected)


def test_a_stream_of_pictures(captioner: Captioner) -> None:
    results = captioner.caption_stream((image for image in (noise(0), b"PK\x03\x04", noise(1))), batch_size=2)
    first, second, third = results
    assert isinstance(second, ImageError)
    assert same(first, captioner.caption(noise(0)))
    assert same(third, captioner.caption(noise(1)))


def test_a_picture_the_extractor_refuses_does_not_stop_the_others(
    captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert captioner.extractor is not None
    extract = captioner.extractor.extract

    def refuse_white(images):
        if any(image.pixels.min() == 255 for image in images):
            raise ImageError("no regions were found in it")
        return extract(images)

    monkeypatch.setattr(captioner.extractor, "extract", refuse_white)
    pictures = [("a", noise(0)), ("white", Image.new("RGB", (9, 9), "white")), ("b", noise(1))]
    results = dict(captioner.caption_many(pictures, batch_size=3))
    assert str(results["white"]) == "white: no regions were found in it"
    assert isinstance(results["a"], Caption)
    assert isinstance(results["b"], Caption)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beams": "3"}, "beams: expected a whole number from 1 to 10, got '3'"),
        ({"beams": 2.5}, "beams: expected a whole number from 1 to 10, got 2.5"),
        ({"beams": 10**5}, "beams: expected a whole number from 1 to 10, got 100000"),
        ({"beams": True}, "beams: expected a whole number from 1 to 10, got True"),
        ({"seed": 1.5}, "seed: expected a whole number from 0 to 9007199254740991, got 1.5"),
        ({"temperature": float("nan")}, "temperature: expected a number from 0.05 to 10, got nan"),
        ({"must": (3,)}, r"must: expected words, as a list of strings, got \(3,\)"),
        ({"must": ["a"] * 11}, "must: expected at most 10 words or phrases, got 11"),
        ({"rule": "best"}, "rule: expected released or earlier, got 'best'"),
        ({"attention": 1}, "attention: expected True or False, got 1"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(DecodingError, match=f"^{message}"):
        CaptionOptions(**given)  # type: ignore[arg-type]


def test_one_string_is_one_required_word() -> None:
    assert CaptionOptions(must="dog").must == ("dog",)  # type: ignore[arg-type]
    assert CaptionOptions(must=["dog", "cat"]).must == ("dog", "cat")  # type: ignore[arg-type]


def test_captions_that_say_a_word_twice_come_last(captioner: Captioner) -> None:
    def repeats(text: str) -> bool:
        words = [word for word in text.split() if is_content(word)]
        return len(set(words)) < len(words)

    mixed = 0
    for seed in range(12):
        found = captioner.caption(noise(seed), beams=8, runners_up=1)
        said = [found, *found.others]
        flags = [repeats(one.text) for one in said]
        assert flags == sorted(flags)
        for flag in set(flags):
            scores = [one.score for one, its in zip(said, flags, strict=True) if its is flag]
            assert scores == sorted(scores, reverse=True)
        assert all(word.runners_up for word in found.words)
        mixed += len(set(flags)) == 2
    assert mixed  # else nothing was shown


def test_among_sentences_the_one_that_names_what_the_network_sees_comes_first(captioner: Captioner) -> None:
    """A head that sees nothing but one word, which the second-best sentence has and the best has not."""
    for seed in range(20):
        plain = captioner.caption(noise(seed), beams=8)
        said = set(content_words(plain.text.split()))
        other = next((one for one in plain.others if set(content_words(one.text.split())) - said), None)
        if other is not None:
            break
    assert other is not None
    (word, *_) = sorted(set(content_words(other.text.split())) - said)
    width = captioner.engine.feature_dim
    head = WordHead((word, "unsaid"), np.zeros((2, width), np.float32), np.array([9, -9], np.float32))
    seeing = Captioner(captioner.engine, captioner.vocabulary, captioner.extractor, judge=Judge(Witness(head)))
    found = seeing.caption(noise(seed), beams=8, runners_up=1)
    assert word in content_words(found.text.split())
    assert {found.text, *(one.text for one in found.others)} == {plain.text, *(one.text for one in plain.others)}
    named = [one for one in (plain, *plain.others) if word in content_words(one.text.split())]
    assert found.text in [one.text for one in named]
    assert found.score in [one.score for one in named]  # the score is still the log-probability
    assert all(place.runners_up for place in found.words)
