"""The rules, on parses written by hand (real spaCy documents, no model)."""

from __future__ import annotations

import pytest

from xlan.metrics.spice_tuples import propositions

spacy = pytest.importorskip("spacy", reason="needs the extra `spice`")
VOCAB = spacy.blank("en").vocab
COARSE = {"NN": "NOUN", "JJ": "ADJ", "VB": "VERB", "IN": "ADP", "CD": "NUM", "DT": "DET", "PR": "PRON", "RB": "ADV"}


def parse(text: str):  # type: ignore[no-untyped-def]
    """word/lemma/TAG/label/head … (heads counted from 0; the lemma may be left empty) → a spaCy document."""
    rows = [row.split("/") for row in text.split()]
    tags = [row[2] for row in rows]
    return spacy.tokens.Doc(
        VOCAB,
        words=[row[0] for row in rows],
        lemmas=[row[1] or row[0] for row in rows],
        tags=tags,
        pos=["AUX" if row[1] == "be" else COARSE.get(row[2][:2], "X") for row in rows],
        deps=[row[3] for row in rows],
        heads=[int(row[4]) for row in rows],
    )


def said(text: str) -> set[tuple[str, ...]]:
    """Attributes and relations; objects are looked at on their own."""
    return {one for one in propositions(parse(text)) if len(one) > 1}


def objects(text: str) -> set[str]:
    return {one[0] for one in propositions(parse(text)) if len(one) == 1}


def test_the_sentence_of_the_spice_paper() -> None:
    text = (
        "a//DT/det/2 young//JJ/amod/2 girl//NN/ROOT/2 standing/stand/VBG/acl/2 on//IN/prep/3 top//NN/pobj/4"
        " of//IN/prep/5 a//DT/det/9 tennis//NN/compound/9 court//NN/pobj/6"
    )
    assert objects(text) == {"girl", "court"}
    assert said(text) == {("girl", "young"), ("court", "tennis"), ("girl", "stand on top of", "court")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # black and white cat
        (
            "black//JJ/amod/3 and//CC/cc/0 white//JJ/conj/0 cat//NN/ROOT/3",
            {("cat", "black"), ("cat", "white")},
        ),
        # 2 dogs, two dogs
        ("2//CD/nummod/1 dogs/dog/NNS/ROOT/1", {("dog", "two")}),
        ("two//CD/nummod/1 dogs/dog/NNS/ROOT/1", {("dog", "two")}),
        # a man is tall and old
        (
            "man//NN/nsubj/1 is/be/VBZ/ROOT/1 tall//JJ/acomp/1 and//CC/cc/2 old//JJ/conj/2",
            {("man", "tall"), ("man", "old")},
        ),
        # the dog is a puppy
        ("dog//NN/nsubj/1 is/be/VBZ/ROOT/1 a//DT/det/3 puppy//NN/attr/1", {("dog", "be", "puppy")}),
        # a dog runs
        ("dog//NN/nsubj/1 runs/run/VBZ/ROOT/1", {("dog", "run")}),
        # a dog is running in the park
        (
            "dog//NN/nsubj/2 is/be/VBZ/aux/2 running/run/VBG/ROOT/2 in//IN/prep/2 park//NN/pobj/3",
            {("dog", "run in", "park")},
        ),
        # a dog is on the couch
        ("dog//NN/nsubj/1 is/be/VBZ/ROOT/1 on//IN/prep/1 couch//NN/pobj/2", {("dog", "on", "couch")}),
        # man picks up the ball
        (
            "man//NN/nsubj/1 picks/pick/VBZ/ROOT/1 up//RP/prt/1 ball//NN/dobj/1",
            {("man", "pick up", "ball")},
        ),
        # a man and a woman ride bikes and eat
        (
            "man//NN/nsubj/3 and//CC/cc/0 woman//NN/conj/0 ride//VBP/ROOT/3 bikes/bike/NNS/dobj/3 and//CC/cc/3"
            " eat//VBP/conj/3",
            {("man", "ride", "bike"), ("woman", "ride", "bike"), ("man", "eat"), ("woman", "eat")},
        ),
        # the dog is walked by a man
        (
            "dog//NN/nsubjpass/2 is/be/VBZ/auxpass/2 walked/walk/VBN/ROOT/2 by//IN/agent/2 man//NN/pobj/3",
            {("man", "walk", "dog")},
        ),
        # a dog walked by a man
        ("dog//NN/ROOT/0 walked/walk/VBN/acl/0 by//IN/agent/1 man//NN/pobj/2", {("man", "walk", "dog")}),
        # a man wearing a hat and glasses
        (
            "man//NN/ROOT/0 wearing/wear/VBG/acl/0 hat//NN/dobj/1 and//CC/cc/2 glasses//NNS/conj/2",
            {("man", "wear", "hat"), ("man", "wear", "glasses")},
        ),
        # a man who holds a ball
        (
            "man//NN/ROOT/0 who//WP/nsubj/2 holds/hold/VBZ/relcl/0 ball//NN/dobj/2",
            {("man", "hold", "ball")},
        ),
        # a cat that is black
        ("cat//NN/ROOT/0 that//WDT/nsubj/2 is/be/VBZ/relcl/0 black//JJ/acomp/2", {("cat", "black")}),
        # a boy next to a car
        ("boy//NN/ROOT/0 next//RB/advmod/0 to//IN/prep/1 car//NN/pobj/2", {("boy", "next to", "car")}),
        # the man 's dog
        ("man//NN/poss/2 's//POS/case/0 dog//NN/ROOT/2", {("man", "have", "dog")}),
        # a boy with his dog
        (
            "boy//NN/ROOT/0 with//IN/prep/0 his//PRP$/poss/3 dog//NN/pobj/1",
            {("boy", "with", "dog"), ("boy", "have", "dog")},
        ),
        # Ann, a singer
        ("singer//NN/ROOT/0 ,//,/punct/0 woman//NN/appos/0", {("singer", "be", "woman")}),
        # a boy looks happy
        ("boy//NN/nsubj/1 looks/look/VBZ/ROOT/1 happy//JJ/acomp/1", {("boy", "happy")}),
        # there is nothing to say of a verb without a subject
        ("run//VB/ROOT/0", set()),
    ],
)
def test_rules(text: str, expected: set[tuple[str, ...]]) -> None:
    assert said(text) == expected


def test_a_couple_of_people_are_people() -> None:
    text = (
        "a//DT/det/1 couple//NN/nsubj/4 of//IN/prep/1 people//NNS/pobj/2 sit//VBP/ROOT/4 on//IN/prep/4 bench//NN/pobj/5"
    )
    assert objects(text) == {"people", "bench"}
    assert said(text) == {("people", "sit on", "bench")}


def test_a_group_of_people_is_a_group() -> None:
    assert objects("group//NN/ROOT/0 of//IN/prep/0 people//NNS/pobj/1") == {"group", "people"}


def test_nouns_are_objects_even_if_nothing_is_said_of_them() -> None:
    assert propositions(parse("dog//NN/ROOT/0 cat//NN/dep/0")) == {("dog",), ("cat",)}


def test_pronouns_take_the_first_noun_that_agrees() -> None:
    # two men and a dog on their bench
    text = (
        "men/man/NNS/ROOT/0 and//CC/cc/0 dog//NN/conj/0 on//IN/prep/0 their//PRP$/poss/5 bench//NN/pobj/3"
        " with//IN/prep/0 its//PRP$/poss/8 bone//NN/pobj/6"
    )
    owned = {one for one in said(text) if one[1] == "have"}
    assert owned == {("man", "have", "bench"), ("dog", "have", "bone")}


def test_nothing_is_said_in_nothing() -> None:
    assert propositions(spacy.tokens.Doc(VOCAB, words=[])) == frozenset()


def test_a_pronoun_without_a_noun_before_it_says_nothing() -> None:
    assert said("she//PRP/nsubj/1 holds/hold/VBZ/ROOT/1 ball//NN/dobj/1") == set()
