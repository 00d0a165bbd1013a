from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import ModelError, SearchError
from xlan.pipeline import Captioner
from xlan.search import PhotoSearch
from xlan.search.rank import LIKELIHOOD, best, log_mean_exp
from xlan.vision.regions import extract_regions

Photos = Callable[..., Path]


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3)), st.integers(1, 12))
def test_the_best_are_those_of_a_sort(scores: list[int], count: int) -> None:
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]
    assert best(np.array(scores, np.float64), count).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1))
def test_a_mean_of_logs_lies_between_them(values: list[float]) -> None:
    assert min(values) - 1e-9 <= float(log_mean_exp(np.array(values))) <= max(values) + 1e-9


def test_photos_are_ranked_by_words_and_by_how_likely_the_sentence_is(photos: Photos, captioner: Captioner) -> None:
    folder = photos(7)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    answer = search.search("a dog on the grass", count=7)
    files = sorted(folder.iterdir())
    assert captioner.extractor is not None
    regions = extract_regions(captioner.extractor, files)
    ids = captioner.vocabulary.encode(["a", "dog", "on", "the", "grass"])
    exact = np.stack([one for (one,) in captioner.engine.score(regions, [[ids]] * 7)]).astype(float)
    ratio = LIKELIHOOD * (exact - log_mean_exp(exact))
    words, places = search.ranker.first(answer.query)
    assert places == [1, 4]  # dog and grass
    for place, row in enumerate(words):
        ratio[files.index(folder / search.ranker.name(place).decode()), places] += row
    scores = dict(zip(files, ratio.sum(axis=1), strict=True))
    assert {one.path: pytest.approx(scores[one.path], abs=0.05) for one in answer.found} == {
        one.path: one.score for one in answer.found
    }  # kept in 8 bits, and yet
    assert [one.score for one in answer.found] == sorted((one.score for one in answer.found), reverse=True)
    first = answer.found[0]
    assert [word for word, _ in first.words] == ["a", "dog", "on", "the", "grass"]
    np.testing.assert_allclose([value for _, value in first.words], ratio[files.index(first.path)][:-1], atol=0.05)
    assert first.caption == captioner.caption(first.path).text
    assert (answer.photos, answer.compared) == (7, 7)


@pytest.mark.parametrize("which", ["captioner", "seeing"])
def test_the_first_stage_chooses_whom_the_second_compares(
    photos: Photos, which: str, request: pytest.FixtureRequest
) -> None:
    model: Captioner = request.getfixturevalue(which)
    search = PhotoSearch.open(photos(9), model)
    search.update()
    everything = search.search("a dog", count=9)
    query = everything.query
    first = search.ranker.first(query)[0].sum(axis=1)
    few = search.search("a dog", count=2, candidates=4)
    assert few.compared == 4
    chosen = {search.ranker.name(int(place)).decode() for place in best(first, 4)}
    assert [one.name for one in few.found] == [one.name for one in everything.found if one.name in chosen][:2]


def test_words_that_vision_names_are_taken_from_it(photos: Photos, seeing: Captioner) -> None:
    folder = photos(6)
    search = PhotoSearch.open(folder, seeing)
    search.update()
    head, extractor = seeing.judge.witness.head, seeing.extractor
    assert head is not None
    assert extractor is not None
    logits = np.stack([head.logits(one) for one in extract_regions(extractor, sorted(folder.iterdir()))])
    ranker = search.ranker
    names = [ranker.name(place) for place in range(6)]
    expected = -np.log1p(np.exp(-logits[:, :2].max(axis=1)))  # dog or dogs, whichever is likelier
    got = dict(zip(names, ranker.first(search.search("the dogs").query)[0][:, 0], strict=True))
    wanted = expected - log_mean_exp(expected.astype(float))
    np.testing.assert_allclose([got[name] for name in sorted(got)], wanted, atol=0.07)
    assert np.ptp(ranker.first(search.search("on grass").query)[0]) >= 0  # the captioner's own word


def test_sentences_of_little_words_work_too(photos: Photos, captioner: Captioner) -> None:
    search = PhotoSearch.open(photos(3), captioner)
    search.update()
    assert len(search.search("on the").found) == 3


def test_one_photo_is_as_likely_as_any(photos: Photos, captioner: Captioner) -> None:
    search = PhotoSearch.open(photos(1), captioner)
    search.update()
    assert search.search("a dog").found[0].score == pytest.approx(0, abs=1e-9)


def test_both_engines_find_the_same(photos: Photos, captioner: Captioner, model_directory: Path) -> None:
    folder = photos(5)
    other = Captioner.from_pretrained(model_directory, engine="torch")
    answers = []
    for model in (captioner, other):
        search = PhotoSearch.open(folder, model)
        search.update()
        answers.append(search.search("a cat on the grass", count=5))
    ours, theirs = ({one.name: one.score for one in answer.found} for answer in answers)
    assert ours == pytest.approx(theirs, abs=0.1)


def test_photos_are_named_by_keys_that_are_no_paths(photos: Photos, captioner: Captioner) -> None:
    search = PhotoSearch.open(photos(3), captioner)
    search.update()
    for one in search.search("a dog").found:
        assert one.key.isalnum()
        assert search.photo(one.key) == one.path
    for wrong in ("", "../0.png", "0.png", "0" * 24):
        assert search.photo(wrong) is None


def test_what_cannot_be_searched_is_refused(photos: Photos, captioner: Captioner, tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="nowhere: no such folder"):
        PhotoSearch.open(tmp_path / "nowhere", captioner)
    nameless = Captioner(captioner.engine, captioner.vocabulary, captioner.extractor)
    with pytest.raises(ModelError, match="search needs a model from a model directory"):
        PhotoSearch.open(photos(1), nameless)
    blind = Captioner(captioner.engine, captioner.vocabulary, identity="x")
    with pytest.raises(ModelError, match="search needs a model that captions pictures"):
        PhotoSearch.open(photos(1), blind)
    search = PhotoSearch.open(photos(1), captioner)
    assert search.search("a dog").found == ()  # nothing is indexed yet
    with pytest.raises(SearchError, match="count: expected a number from 1 to 1,000, got 0"):
        search.search("a dog", count=0)
    with pytest.raises(SearchError, match="candidates: expected a number from 1 to 100,000, got 0"):
        search.search("a dog", candidates=0)
