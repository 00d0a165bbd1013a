"""A parsed caption → the propositions it makes: (object), (object, attribute), (object, relation, object).

After Schuster et al., "Generating semantically precise scene graphs from textual descriptions" (2015), with the changes
of Anderson et al., "SPICE" (2016, section 3.1): numbers are attributes instead of copies of an object, and every noun
is an object whether or not something is said of it. The rules there are over Stanford dependencies; here they are over
the dependency labels of spaCy's English models:

- adjectives, participles, numbers and nouns before a noun, and adjectives after a form of *be*, are attributes;
- a verb with subject and object, active or passive, is a relation; without an object or phrase it is an attribute;
- a preposition between nouns is a relation, as is a verb with its preposition ("stand on top of"): one proposition,
  as the SPICE counts that others published suggest, where the example in the SPICE paper makes two;
- what belongs to somebody (*'s*, *his*) is the relation "have"; *be* between nouns is the relation "be";
- what is said of one of several nouns joined by *and* is said of each;
- "a couple of people" is about people; *he*, *they*, *who*… stand for a noun before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

Proposition = tuple[str, ...]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Prepositions of more than one word; the words inside are not objects themselves.
_LONG_PREPOSITIONS = frozenset(
    phrase.replace("_", " ")
    for phrase in _words(
        """across_from ahead_of along_with alongside_of apart_from away_from because_of close_to due_to far_from
        in_back_of in_between in_front_of in_place_of inside_of instead_of near_to next_to off_of on_top_of out_of
        outside_of together_with up_against up_to"""
    )
)
# "a couple of people" is about people; "a group of people" is about a group, which can be seen.
_QUANTIFIERS = _words(
    "bit bunch couple dozen handful kind lot majority number pair plenty several sort ton type variety"
)
_NUMBERS = {"0": "zero", "1": "one", "2": "two", "3": "three", "4": "four", "5": "five", "6": "six", "7": "seven"}
_NUMBERS |= {"8": "eight", "9": "nine", "10": "ten", "11": "eleven", "12": "twelve"}
_SINGULAR_PRONOUNS = _words("he him his himself she her hers herself it its itself")
_PLURAL_PRONOUNS = _words("they them their theirs themselves")
_RELATIVE_PRONOUNS = _words("who whom which that")
_SUBJECTS = frozenset(("nsubj", "nsubjpass", "csubj"))
_OBJECTS = frozenset(("dobj", "dative"))
_POBJ = frozenset(("pobj",))
_MODIFIERS = frozenset(("amod", "nummod", "compound", "nmod"))
_COMPLEMENTS = frozenset(("acomp", "attr", "oprd"))
_CHAINED = frozenset(("conj", "xcomp", "advcl", "ccomp", "acl", "relcl"))
# Of very long lists only the first words count; the limit keeps the work linear in the caption.
_MAX_JOINED = 16


def propositions(doc: Doc) -> frozenset[Proposition]:
    """Everything that a caption says: lower-case lemmas in tuples of one, two or three."""
    return frozenset(_Reader(doc).read())


class _Reader:
    """Reads one caption. Words are tokens of the parse; names are what goes into propositions."""

    def __init__(self, doc: Doc) -> None:
        self._doc = doc
        long = (self._preposition(token)[2] for token in doc if token.dep_ == "prep")
        self._inside_preposition = {word.i for words in long for word in words}
        self._first_objects = list(islice((token for token in doc if self._is_object(token)), _MAX_JOINED))

    def read(self) -> Iterator[Proposition]:
        for token in self._doc:
            if self._is_object(token):
                yield (_name(token),)
                yield from self._of_noun(token)
            if token.pos_ in ("VERB", "AUX"):
                yield from self._of_be(token) if _is_be(token) else self._of_verb(token)
            if token.dep_ == "prep":
                yield from self._of_preposition(token)

    # --- what counts as an object ---

    def _is_object(self, token: Token) -> bool:
        return (
            _is_noun(token)
            and token.i not in self._inside_preposition
            and not (token.dep_ in ("compound", "nmod") and _is_noun(token.head))
            and self._counted(token).i == token.i
        )

    def _counted(self, word: Token) -> Token:
        """The people of "a couple of people" and "two of the people"; any other word itself."""
        if word.lemma_.lower() not in _QUANTIFIERS and word.tag_ not in ("CD", "DT", "JJ"):
            return word
        for child in word.children:
            if child.dep_ == "prep" and child.lower_ == "of":
                for inner in child.children:
                    if inner.dep_ == "pobj" and _is_noun(inner):
                        return inner
        return word

    def _objects(self, word: Token) -> list[Token]:
        """The nouns that `word` is about: itself or what it stands for, and what is joined to it by *and*."""
        words = [word] if word.dep_ == "conj" else _joined(word)
        found = (self._referent(one) for one in words)
        return [noun for noun in found if noun is not None]

    def _referent(self, word: Token) -> Token | None:
        while word.lower_ in _RELATIVE_PRONOUNS:
            clause = next((one for one in word.ancestors if one.dep_ == "relcl"), None)
            if clause is None or clause.head.i >= word.i:
                return None
            word = clause.head
        if word.lower_ in _SINGULAR_PRONOUNS or word.lower_ in _PLURAL_PRONOUNS:
            return self._antecedent(word, plural=word.lower_ in _PLURAL_PRONOUNS)
        noun = self._counted(word)
        return noun if self._is_object(noun) else None

    def _antecedent(self, pronoun: Token, *, plural: bool) -> Token | None:
        """The first noun before the pronoun that agrees in number, subjects first, as a reader would take it."""
        before = [noun for noun in self._first_objects if noun.i < pronoun.i]
        # "A man and a woman … their": several nouns make a plural.
        agreeing = [noun for noun in before if (noun.tag_ in ("NNS", "NNPS")) == plural] or (before if plural else [])
        subjects = [noun for noun in agreeing if noun.dep_ in _SUBJECTS or noun.dep_ == "ROOT"]
        return next(iter(subjects or agreeing), None)

    # --- rules ---

    def _of_noun(self, noun: Token) -> Iterator[Proposition]:
        for child in noun.children:
            if child.dep_ in _MODIFIERS:
                yield from ((_name(noun), _name(word)) for word in _joined(child))
            elif child.dep_ == "poss":
                yield from ((_name(owner), "have", _name(noun)) for owner in self._objects(child))
            elif child.dep_ == "appos" and self._is_object(child):
                yield (_name(noun), "be", _name(child))

    def _of_verb(self, verb: Token) -> Iterator[Proposition]:
        doers, done_to = self._subjects(verb)
        objects = self._objects_under(verb, _OBJECTS)
        agents = [
            noun for child in verb.children if child.dep_ == "agent" for noun in self._objects_under(child, _POBJ)
        ]
        yield from ((_name(doer), _verb_name(verb), _name(noun)) for doer in doers for noun in objects)
        yield from ((_name(agent), _verb_name(verb), _name(noun)) for agent in agents for noun in done_to)
        complements = [word for child in verb.children if child.dep_ in _COMPLEMENTS for word in _joined(child)]
        yield from ((_name(noun), _name(word)) for noun in (*doers, *done_to) for word in complements)
        alone = not any(child.dep_ in ("prep", "xcomp", "ccomp") for child in verb.children)
        if alone and not (objects or agents or complements):
            yield from ((_name(noun), _verb_name(verb)) for noun in (*doers, *done_to))

    def _of_be(self, verb: Token) -> Iterator[Proposition]:
        subjects, _ = self._subjects(verb)
        for child in verb.children:
            if child.dep_ in _COMPLEMENTS:
                nouns = [noun for word in _joined(child) if _is_noun(word) for noun in self._objects(word)]
                others = [word for word in _joined(child) if not _is_noun(word)]
                for subject in subjects:
                    yield from ((_name(subject), "be", _name(noun)) for noun in nouns)
                    yield from ((_name(subject), _name(word)) for word in others)

    def _of_preposition(self, preposition: Token) -> Iterator[Proposition]:
        name, governor, _ = self._preposition(preposition)
        if governor.pos_ in ("VERB", "AUX"):
            subjects = [noun for nouns in self._subjects(governor) for noun in nouns]
            name = name if _is_be(governor) else f"{_verb_name(governor)} {name}"
        elif preposition.lower_ == "of" and self._counted(governor).i != governor.i:
            return
        else:
            subjects = self._objects(governor)
        for subject in subjects:
            for noun in self._objects_under(preposition, _POBJ):
                if noun.i != subject.i:
                    yield (_name(subject), name, _name(noun))

    # --- navigating the tree ---

    def _objects_under(self, head: Token, labels: frozenset[str]) -> list[Token]:
        return [noun for child in head.children if child.dep_ in labels for noun in self._objects(child)]

    def _preposition(self, token: Token) -> tuple[str, Token, list[Token]]:
        """A preposition's name ("on top of"), the word it hangs on, and the words before it that are in its name."""
        name, top = token.lower_, token
        inside: list[Token] = []
        for _ in range(2):
            top = top.head
            if top.i >= token.i:
                break
            inside.append(top)
            name = f"{top.lower_} {name}"
            if name in _LONG_PREPOSITIONS:
                return name, top.head, inside
        return token.lower_, token.head, []

    def _subjects(self, verb: Token) -> tuple[list[Token], list[Token]]:
        """Nouns that do what the verb says, and nouns to which it is done."""
        for _ in range(_MAX_JOINED):
            own = [child for child in verb.children if child.dep_ in _SUBJECTS]
            if own:
                nouns = [noun for child in own for noun in self._objects(child)]
                return ([], nouns) if any(child.dep_ == "nsubjpass" for child in own) else (nouns, [])
            if verb.dep_ not in _CHAINED:
                break
            # "a man riding", "a horse ridden": the noun is the subject, or what a past participle is done to.
            participle, verb = verb.tag_ == "VBN" and verb.dep_ == "acl", verb.head
            if verb.pos_ not in ("VERB", "AUX"):
                nouns = self._objects(verb)
                return ([], nouns) if participle else (nouns, [])
        return [], []


def _is_noun(token: Token) -> bool:
    return bool(token.tag_.startswith("NN"))


def _is_be(verb: Token) -> bool:
    return bool(verb.lemma_.lower() == "be")


def _joined(token: Token) -> list[Token]:
    """A word and the words joined to it by *and*, *or* or a comma."""
    return [token, *token.conjuncts[:_MAX_JOINED]]


def _name(token: Token) -> str:
    word = token.lemma_.lower() or token.lower_
    return _NUMBERS.get(word, word)


def _verb_name(verb: Token) -> str:
    particles = [child.lower_ for child in verb.children if child.dep_ == "prt"]
    return " ".join([_name(verb), *particles])
