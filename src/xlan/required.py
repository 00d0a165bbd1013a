"""Required words as a small automaton: what has been said so far is its state. Plain Python, shared by every engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xlan.errors import DecodingError

Phrase = tuple[int, ...]
MAX_STATES = 128


class RequiredWords:
    """Words that must appear.

    Args:
        requirements: each is the alternatives of which one must appear; an alternative is an id, or a sequence of ids
            for a phrase. `[[dog, dogs], [frisbee]]`: a dog or dogs, and a frisbee.
        bad_endings: words a sentence may not end on, so that one more must fit behind them.

    Raises:
        DecodingError: a requirement without alternatives, or more combinations than a search can follow.
    """

    def __init__(
        self, requirements: Iterable[Iterable[int | Sequence[int]]], *, bad_endings: Iterable[int] = ()
    ) -> None:
        self.requirements = tuple(as_phrases(alternatives) for alternatives in requirements)
        if not self.requirements or not all(self.requirements):
            raise DecodingError("required words: every requirement needs at least one word, got one without any")
        self.words: tuple[int, ...] = tuple(sorted({w for r in self.requirements for phrase in r for w in phrase}))
        self.successors: list[list[int]] = []
        """`[S][K + 1]`: the state after any other word (column 0) or after the K words in `words` (1 to K).

        State 0 is the start; the last state means that all is said.
        """
        self._build()
        self.still_needed = self._distances(frozenset(bad_endings))
        """`[S][K + 1]`: the fewest words that must follow each word, until all is said and the sentence may end."""

    @property
    def states(self) -> int:
        """Number S of states."""
        return len(self.successors)

    @property
    def fewest_words(self) -> int:
        """Length of the shortest sentence that says all."""
        return 1 + min(self.still_needed[0])

    def check_room(self, word_limit: int) -> None:
        """Refuse more words than fit into a sentence of at most `word_limit` words."""
        if self.fewest_words > word_limit:
            raise DecodingError(
                f"required words: they take at least {self.fewest_words} words, but a sentence may have at most "
                f"{word_limit}; require fewer words or raise the maximum length"
            )

    def _build(self) -> None:
        """Number the states that can be reached and note where each word leads.

        A state is (requirements still open, the longest run of last words that starts a phrase still needed).
        """
        start: tuple[frozenset[int], Phrase] = (frozenset(range(len(self.requirements))), ())
        numbers = {start: 0}
        table: list[list[int]] = []
        queue = [start]
        for state in queue:
            row = []
            for word in (None, *self.words):
                following = self._follow(state, word)
                if following not in numbers:
                    numbers[following] = len(queue)
                    queue.append(following)
                row.append(numbers[following])
            table.append(row)
            if len(queue) > MAX_STATES:
                raise DecodingError(
                    f"required words: {len(self.requirements)} requirements make more than {MAX_STATES} combinations; "
                    "require fewer words at once"
                )
        goal = numbers[(frozenset(), ())]
        order = [i for i in range(len(table)) if i != goal] + [goal]
        place = {old: new for new, old in enumerate(order)}
        self.successors = [[place[i] for i in table[old]] for old in order]

    def _follow(self, state: tuple[frozenset[int], Phrase], word: int | None) -> tuple[frozenset[int], Phrase]:
        open_ones, run = state
        said = () if word is None else (*run, word)
        open_ones = frozenset(
            r for r in open_ones if not any(said[len(said) - len(p) :] == p for p in self.requirements[r] if said)
        )
        needed = [phrase for r in open_ones for phrase in self.requirements[r]]
        runs = (said[i:] for i in range(len(said)))
        return open_ones, next((r for r in runs if any(len(r) < len(p) and p[: len(r)] == r for p in needed)), ())

    def _distances(self, bad_endings: frozenset[int]) -> list[list[int]]:
        goal, far = self.states - 1, self.states + 1
        behind = [0, *(int(word in bad_endings) for word in self.words)]
        fewest = [far] * self.states
        while True:
            needed = [
                [behind[column] if following == goal else 1 + fewest[following] for column, following in enumerate(row)]
                for row in self.successors
            ]
            before, fewest = fewest, [min(row) for row in needed]
            if fewest == before:
                return needed


def as_phrases(entries: Iterable[int | Sequence[int]]) -> tuple[Phrase, ...]:
    """Ids and sequences of ids as tuples."""
    phrases = tuple((entry,) if isinstance(entry, int) else tuple(entry) for entry in entries)
    if not all(phrases):
        raise DecodingError("a phrase needs at least one word, got an empty one")
    return phrases


def refuse_forbidden(requirements: Iterable[Sequence[Phrase]], forbidden: frozenset[int]) -> None:
    """Refuse requirements of which every alternative has a word that is forbidden."""
    for alternatives in requirements:
        if all(forbidden & set(phrase) for phrase in alternatives):
            word = next(iter(forbidden & set(alternatives[0])))
            raise DecodingError(f"required words: id {word} is required and forbidden; drop one of the two")


def no_sentence(images: Sequence[int], word_limit: int) -> DecodingError:
    """The error for images that were left without any sentence."""
    which = ", ".join(str(i) for i in images[:5]) + (", …" if len(images) > 5 else "")
    return DecodingError(
        f"no sentence of at most {word_limit} words satisfies the controls for image {which} of the batch; "
        "loosen a control, raise the maximum length or search with a wider beam"
    )


def not_a_number(images: Sequence[int]) -> DecodingError:
    """The error for a model whose log-probabilities are NaN."""
    which = ", ".join(str(i) for i in images[:5])
    return DecodingError(
        f"the model returned NaN instead of log-probabilities for image {which} of the batch; "
        "check its weights, and that the features are finite"
    )
