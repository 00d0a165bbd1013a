"""Our metrics and the official ones (pycocoevalcap, with Java where it needs it) on the same captions, in turns.

    python benchmarks/metrics_speed.py [RESULTS REFERENCES] [--images 5000] [--rounds 3] [--meteor]

Without files the captions are made from 200 real images of the test fixtures, with words exchanged at random, so that
no two images are alike. Each round runs both sides, in changing order; what is printed is the median of the rounds and
their ratio. Our tokenizer starts every round without anything remembered.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xlan.metrics import ptb
from xlan.metrics.bleu import bleu
from xlan.metrics.cider import cider
from xlan.metrics.cider_reference import cider_d
from xlan.metrics.ciderd import CiderD
from xlan.metrics.coco import load_references, load_results, pair
from xlan.metrics.docfreq import DocumentFrequencies
from xlan.metrics.ngrams import CorpusNgrams
from xlan.metrics.rouge import rouge_l

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures" / "metrics"
Corpus = tuple[dict[Any, str], dict[Any, list[str]]]


def read(name: str) -> Any:
    with gzip.open(FIXTURES / name, "rt", encoding="utf-8") as file:
        return json.load(file)


def made_corpus(images: int) -> Corpus:
    official = read("karpathy200_official.json.gz")
    texts: dict[int, list[str]] = {}
    for entry in official["references"]["annotations"]:
        texts.setdefault(entry["image_id"], []).append(entry["caption"])
    hypotheses = {entry["image_id"]: entry["caption"] for entry in official["results"]}
    words = sorted({word for several in texts.values() for text in several for word in text.split() if word.isalpha()})
    random = np.random.default_rng(0)

    def changed(text: str) -> str:
        return " ".join(str(random.choice(words)) if random.random() < 0.15 else word for word in text.split())

    results, references = {}, {}
    sources = list(texts)
    for image in range(images):
        source = sources[image % len(sources)]
        results[image] = changed(hypotheses[source])
        references[image] = [changed(text) for text in texts[source]]
    return results, references


def ours(corpus: Corpus) -> dict[str, float]:
    results, references = corpus
    times = {}
    ptb._cache.clear()
    start = time.perf_counter()
    tokens = {key: ptb.tokenize(text) for key, text in results.items()}
    reference_tokens = {key: [ptb.tokenize(text) for text in several] for key, several in references.items()}
    times["tokenizer"] = time.perf_counter() - start
    start = time.perf_counter()
    ngrams = CorpusNgrams.from_texts(reference_tokens, tokens)
    bleu(ngrams)
    times["BLEU"] = time.perf_counter() - start
    start = time.perf_counter()
    cider(ngrams)
    times["CIDEr"] = time.perf_counter() - start
    start = time.perf_counter()
    rouge_l(reference_tokens, tokens)
    times["ROUGE-L"] = time.perf_counter() - start
    return times


def official(corpus: Corpus) -> dict[str, float]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    results, references = corpus
    times = {}
    start = time.perf_counter()
    tokenizer = PTBTokenizer()
    theirs = tokenizer.tokenize({key: [{"caption": text}] for key, text in results.items()})
    truth = tokenizer.tokenize({key: [{"caption": text} for text in several] for key, several in references.items()})
    times["tokenizer"] = time.perf_counter() - start
    scorers: dict[str, Callable[[], Any]] = {
        "BLEU": lambda: Bleu(4).compute_score(truth, theirs, verbose=0),
        "CIDEr": lambda: Cider().compute_score(truth, theirs),
        "ROUGE-L": lambda: Rouge().compute_score(truth, theirs),
    }
    for name, score in scorers.items():
        start = time.perf_counter()
        score()
        times[name] = time.perf_counter() - start
    return times


def meteor_ours(corpus: Corpus) -> dict[str, float]:
    from xlan.metrics.meteor import Meteor

    results, references = corpus
    tokens = {key: ptb.tokenize(text) for key, text in results.items()}
    truth = {key: [ptb.tokenize(text) for text in several] for key, several in references.items()}
    start = time.perf_counter()
    Meteor().score(truth, tokens)
    return {"METEOR": time.perf_counter() - start}


def meteor_official(corpus: Corpus) -> dict[str, float]:
    from pycocoevalcap.meteor.meteor import Meteor

    results, references = corpus
    tokens = {key: [ptb.tokenize(text)] for key, text in results.items()}
    truth = {key: [ptb.tokenize(text) for text in several] for key, several in references.items()}
    start = time.perf_counter()
    Meteor().compute_score(truth, tokens)
    return {"METEOR": time.perf_counter() - start}


def in_turns(corpus: Corpus, rounds: int, one: Callable[..., Any], two: Callable[..., Any]) -> tuple[Any, Any]:
    """Median seconds by step of both sides, run in changing order."""
    found: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for number in range(rounds):
        sides = [(one, found[0]), (two, found[1])]
        for run, times in sides if number % 2 == 0 else reversed(sides):
            quiet = contextlib.redirect_stdout(io.StringIO())
            with quiet:
                times.append(run(corpus))
    return tuple({step: statistics.median(t[step] for t in side) for step in side[0]} for side in found)  # type: ignore[return-value]


def print_ratio(name: str, mine: float, theirs: float) -> None:
    print(f"{name:34s} {mine:9.3f} s {theirs:9.3f} s {theirs / mine:8.1f}×")


def corpus_metrics(corpus: Corpus, rounds: int) -> None:
    mine, theirs = in_turns(corpus, rounds, ours, official)
    for step in mine:
        print_ratio(step, mine[step], theirs[step])
    print_ratio("together", sum(mine.values()), sum(theirs.values()))


def meteor(corpus: Corpus, rounds: int) -> None:
    meteor_ours(({0: "a dog"}, {0: ["a dog"]}))  # builds the index where there is none
    mine, theirs = in_turns(corpus, rounds, meteor_ours, meteor_official)
    print_ratio("METEOR (index built)", mine["METEOR"], theirs["METEOR"])
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[1]); import metrics_speed as m\n"
        "m.meteor_ours(m.made_corpus(int(sys.argv[2])))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(len(corpus[0]))]
    kilobytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"METEOR peak memory, whole process  {kilobytes / 1024:9.0f} MB")


def reward(rounds: int) -> None:
    """250 sampled captions of 50 images."""
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    data = read("ciderd_official.json.gz")
    frequencies = {tuple(map(int, gram.split())): count for gram, count in data["df"].items()}
    table = DocumentFrequencies.from_counts(
        frequencies, log_documents=data["ref_len"], vocabulary_size=9488, end_id=0, includes_end=True
    )
    images, captions = [str(image) for image, _ in data["hyps"]], [ids for _, ids in data["hyps"]]

    def official_scorer() -> None:
        scorer = CiderScorer()
        for image, ids in zip(images, captions, strict=True):
            scorer += (" ".join(map(str, ids)), [" ".join(map(str, r)) for r in data["refs"][image]])
        scorer.document_frequency.update({tuple(map(str, gram)): count for gram, count in frequencies.items()})
        scorer.compute_cider()

    def obvious() -> None:
        for image, ids in zip(images, captions, strict=True):
            cider_d(ids, data["refs"][image], frequencies=frequencies, log_documents=data["ref_len"])

    runs: dict[str, Callable[[], Any]] = {"official scorer": official_scorer, "plain loops": obvious}
    for engine in ("numba", "numpy"):
        scorer = CiderD(table, data["refs"], engine=engine)  # type: ignore[arg-type]
        scorer(images, captions)
        runs[engine] = lambda scorer=scorer: scorer(images, captions)  # type: ignore[misc]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(max(5, rounds)):
        for name, run in runs.items():
            repeats = 1 if name in ("official scorer", "plain loops") else 10
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            seconds[name].append((time.perf_counter() - start) / repeats)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for engine in ("numba", "numpy"):
        print_ratio(f"CIDEr-D, 250 captions, {engine}", median[engine], median["official scorer"])
    print_ratio("  (our plain loops)", median["plain loops"], median["official scorer"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="RESULTS REFERENCES", help="captions to use instead of made ones")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--meteor", action="store_true", help="time METEOR as well")
    options = parser.parse_args()
    if options.files:
        results, references = options.files
        corpus: Corpus = pair(load_results(results), load_references(references), subset=True)
    else:
        corpus = made_corpus(options.images)
    captions = sum(len(several) for several in corpus[1].values())
    print(f"{len(corpus[0]):,} images, {captions:,} references, median of {options.rounds} rounds")
    print(f"{'':34s} {'xlan':>11s} {'official':>11s} {'faster':>9s}")
    if shutil.which("java"):
        corpus_metrics(corpus, options.rounds)
        if options.meteor:
            meteor(corpus, options.rounds)
    else:
        print("the official tokenizer and METEOR need Java, which is not here: only the reward is compared")
    reward(options.rounds)


if __name__ == "__main__":
    main()
