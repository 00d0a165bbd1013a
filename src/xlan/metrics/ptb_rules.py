"""The lexical rules behind `xlan.metrics.ptb`: what counts as one token, and how it is written.

The official scorer runs a longest-match scanner with look-ahead: at each place every rule is tried, the rule that
*sees* most characters wins (what it looks ahead at counts, the token itself may be shorter), and of equals the first.
The rules below were found by giving that program many strings and reading its answers. A rule is a pattern whose
group 1 is the token (the rest of the match is look-ahead) and a way to write the token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

NBSP = "\u00a0"

_NOT_ALNUM = (
    r"\s\x00-\x2b\x2d\x2f\x3a-\x40\x5b-\x60\x7b-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\xd7\xf7\u037e\u0387\u0589\u058a\u2000-\u206f"
    r"\u2070-\u209f\u20a0-\u20cf\u2100\u2101\u2103-\u2106\u2108\u2109\u2114\u2116-\u2118\u211e-\u2123\u2125\u2127"
    r"\u2129\u212e\u213a\u213b\u2140-\u2144\u214a-\u218f\u2190-\u2bff\u2e00-\u3004\u3007-\u3030\u30fb\ue000-\uf8ff"
    r"\ufe10-\ufe6f\ufeff-\uff20\uff3b-\uff40\uff5b-\uff65\uffe0-\uffff\U00010000-\U0010ffff"
)
LETTER = rf"[^,.{_NOT_ALNUM}\d]"
ALNUM = rf"[^,.{_NOT_ALNUM}]"
ALNUM_OR_POINT = rf"[^{_NOT_ALNUM}]"
ASCII_ALNUM = "[A-Za-z0-9]"
APOSTROPHE = r"(?:['\u2019]|&apos;)"
# Between a letter and a letter, a full stop, exclamation or question mark is part of the word: "snow.snow".
WORD = rf"{LETTER}{ALNUM}*(?:[.!?]{LETTER}{ALNUM}*)*"
NUMBER = r"\d*(?:[.:,\u066b\u066c]\d+)+|\d+"
HYPHEN = r"[-\u058a\u2010\u2011]"
# O'Brien, d'or, l'amour; any capital but I and Y, which have contractions of their own.
ELIDED = rf"(?:[A-HJ-XZdlo]['\u2019](?!(?i:ll|re|ve)(?![A-Za-z])){ALNUM}{{2,}}|n['\u2019]{LETTER}{{2,}})"
# Full stops and commas belong to a compound only before its first hyphen: "U.S.-made", "5.5-inch".
COMPOUND = rf"(?:{ELIDED}|{ALNUM}{ALNUM_OR_POINT}*)(?:{HYPHEN}(?:{ELIDED}|{ALNUM}+))+"
UNDERSCORED = rf"{ALNUM}+(?:_{ALNUM}+)+"
_SLASH_PART = rf"{ASCII_ALNUM}+(?:{HYPHEN}[A-Za-z]+){{0,2}}"
SLASHED = rf"{_SLASH_PART}(?:\\?/{_SLASH_PART}){{1,2}}"


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Abbreviations that may close a sentence: they get a second full stop when a capital follows.
CLOSING_ABBREVIATIONS = _listed("""
al ala apr ariz assn aug bhd bldg blvd bros co colo conn corp cos ct dak dec ed.d esq est etc ext feb fla fri ga inc
ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont neb nev nov oct okla penn ph.d plc rd rt sep sept
seq sq sr sys tel tenn thu tue tues univ va vt wed wis wisc wyo
""")
# The same, but only with a capital: in lower case they are words.
CAPITAL_ABBREVIATIONS = _listed("ark az del ill la mass miss ore pa tex wash")
# Abbreviations that stand before a name.
TITLE_ABBREVIATIONS = _listed("""
adj adm adv alex asst atty ave brig capt cf cie cmdr col cpl dept det dr drs elec ens ft gen gov govs hon insp invt jos
lt maj messrs mlle mme mr mrs ms msgr mt natl pfc ph pres prof pvt rep reps rev sen sens sfc sgt spc st ste supt vs wm
""")
# Abbreviations only when a number follows.
NUMBER_ABBREVIATIONS = _listed("art ca fig figs no nos op pp prop")
# A capitalised word of this list after initials begins a sentence.
SENTENCE_STARTERS = _listed("""
A About According Additionally After An As At But Earlier He Her Here However If In It Last Many More Now Once One Other
Our She Since So Some Such That The Their Then There These They This We What When While Yet You
""")
# Written together, read as two words.
JOINED = {"cannot": 3, "gonna": 3, "gotta": 3, "lemme": 3, "gimme": 3, "wanna": 3}

# Kept whole although an apostrophe is in them.
APOSTROPHE_INSIDE = _listed("c'mon s'mores ne'er e'er ol' dunkin' cap'n ev'ry li'l nat'l qu'il")

# Symbols of the wider Unicode planes that are tokens; what is neither letter, digit, space nor listed is dropped.
KEPT_SYMBOLS = (
    "\u00a1\u00a5-\u00a9\u00ac\u00ae-\u00b4\u00b6-\u00b9\u00bf\u00d7\u00f7\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6"
    "\u05f3\u05f4\u0600-\u0603\u0606-\u060c\u0614\u061b\u061e\u061f\u066a\u066d\u06d4\u0700-\u070d\u07f6-\u07f8\u0964"
    "\u0965\u0e3f\u0e4f\u1fbd\u2016\u2017\u201a\u201e-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2044\u2070\u2074-\u207e"
    "\u2080-\u208e\u20a4\u2100\u2101\u2103-\u2106\u2108\u2109\u2114\u2116-\u2118\u211e-\u2123\u2125\u2127\u2129\u212e"
    "\u213a\u213b\u2140-\u2144\u214a-\u214d\u214f\u2155-\u215e\u2190-\u2bff\u3001\u3002\u3012\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40"
    "\uff5b-\uff65\uffe0\uffe1\uffe5\uffe6"
)
# Single characters with another spelling in the Penn Treebank, or with the code page people meant by them.
RESPELLED: Mapping[str, str] = {
    "(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-",
    "\u201c": "``", "\u00ab": "``", "\u0093": "``", "\u201d": "''", "\u00bb": "''", "\u0094": "''",
    "\u2018": "`", "\u201b": "`", "\u2039": "`", "\u0091": "`", "\u2019": "'", "\u203a": "'", "\u0092": "'",
    "\u2013": "--", "\u2014": "--", "\u2015": "--", "\u0096": "--", "\u0097": "--", "\u00ad": "-",
    "\u00a3": "#", "\u20ac": "$", "\u20a0": "$", "\u00a4": "$", "\u0080": "$", "\u00a2": "cents",
    "\u2026": "...", "\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3",
}  # fmt: skip
ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "mdash": "--", "ndash": "--", "apos": "'"}


class Rule(NamedTuple):
    """One lexical rule: the pattern (group 1 is the token, the rest is look-ahead) and the words it writes."""

    pattern: re.Pattern[str]
    write: Callable[[str], tuple[str, ...]]


def _as_is(token: str) -> tuple[str, ...]:
    return (token,)


def _with_stop(token: str) -> tuple[str, ...]:
    return (token, ".")


def _split_joined(token: str) -> tuple[str, ...]:
    cut = JOINED[token.lower()]
    return (token[:cut], token[cut:])


def _one_token(token: str) -> tuple[str, ...]:
    """A token with a space inside is printed with a no-break space, so that it stays one token."""
    return (token.replace(" ", NBSP).replace("(", "-LRB-").replace(")", "-RRB-"),)


def _plain_apostrophe(token: str) -> tuple[str, ...]:
    return (token.replace("&apos;", "'").replace("\u2019", "'"),)


def _constant(*tokens: str) -> Callable[[str], tuple[str, ...]]:
    return lambda _: tokens


def _entity(token: str) -> tuple[str, ...]:
    return (ENTITIES[token[1:-1].lower()],)


def _amp(token: str) -> tuple[str, ...]:
    return (re.sub("&amp;", "&", token, flags=re.IGNORECASE),)


def _vulgar(token: str) -> tuple[str, ...]:
    whole, fraction = token[:-1].rstrip(" " + NBSP), RESPELLED[token[-1]]
    return (whole, fraction) if whole else (fraction,)


def _quotes(token: str) -> tuple[str, ...]:
    return ("".join(RESPELLED.get(character, character) for character in token),)


def _any_of(words: Iterable[str]) -> str:
    return f"(?i:{'|'.join(re.escape(word) for word in sorted(words, key=len, reverse=True))})"


def _capitalised(words: Iterable[str]) -> str:
    """Any of `words` with a capital first letter, the rest in either case."""
    return "|".join(word[0].upper() + (f"(?i:{word[1:]})" if word[1:] else "") for word in words)


def _rule(pattern: str, write: Callable[[str], tuple[str, ...]] = _as_is) -> Rule:
    return Rule(re.compile(pattern), write)


_CLOSING = rf"(?:{_any_of(CLOSING_ABBREVIATIONS)}|{_capitalised(CAPITAL_ABBREVIATIONS)}|[Pp]?[Pp]t[ey]s?)\."
_STARTER = rf"\s+(?:{_capitalised(SENTENCE_STARTERS)})\s"
_APOSTROPHE_INSIDE = "|".join(APOSTROPHE_INSIDE).replace("'", r"['\u2019]")
_INITIALS = r"[A-Za-z](?:\.[A-Za-z])+\."

_URL_TAIL = r"[^\s\"<>|()]*[^\s\"<>|().!?,;:'\-]"
_EMAIL = _rule(r"([A-Za-z0-9][^\s\"<>|()@!?,]*@(?:[^\s\"<>|().!?,@]+\.)*[^\s\"<>|().!?,@'&;:]+)")
# Before a comma, semicolon or colon a full stop stays with its word.
BEFORE_PUNCTUATION = _rule(rf"((?:{COMPOUND}|{SLASHED}|{WORD}|{ALNUM}+|{NUMBER})\.)[,;:]")

LETTER_RULES: tuple[Rule, ...] = (
    # words, alone or before n't
    _rule(rf"({_any_of(JOINED)})(?!{APOSTROPHE}(?i:s|m|d|ll|re|ve)(?![A-Za-z]))", _split_joined),
    _rule(rf"({LETTER}*[^,.{_NOT_ALNUM}\dnN])[nN](?:['\u2019`]|&apos;)[tT]"),
    _rule(r"([nN](?:['\u2019`]|&apos;)[tT])", _plain_apostrophe),
    _rule(rf"({WORD})"),
    # abbreviations and initials; the first of each pair ends a sentence
    _rule(rf"({_CLOSING})\s+[A-Z]", _with_stop),
    _rule(rf"({_CLOSING})(?s:..)"),
    _rule(rf"((?:{_any_of(TITLE_ABBREVIATIONS)}|[Mm][ft]g)\.)"),
    _rule(rf"({_any_of(NUMBER_ABBREVIATIONS)}\.)\s?\d"),
    _rule(rf"([A-Za-z])\.{_STARTER}"),
    _rule(r"([A-Za-z]\.)"),
    _rule(rf"({_INITIALS}){_STARTER}", _with_stop),
    _rule(rf"({_INITIALS})"),
    # words joined by hyphens, underscores, slashes or apostrophes
    _rule(rf"({COMPOUND})"),
    _rule(rf"({UNDERSCORED})"),
    _rule(rf"({SLASHED})"),
    _rule(rf"({ELIDED})"),
    _rule(rf"({LETTER}+[aeiouyAEIOUY]['\u2019][aeiouAEIOU]{LETTER}*)"),
    _rule(rf"((?i:{_APOSTROPHE_INSIDE}))"),
    _rule(rf"([yY]['\u2019])(?![sSmMdDlLrRvV]){LETTER}"),
    _rule(r"([dDlL]['\u2019])(?!(?i:s|m|d|ll|re|ve)(?![A-Za-z]))"),
    # addresses
    _rule(rf"((?i:https?)://[^\s\"<>|()]+\.{_URL_TAIL})"),
    _rule(rf"((?i:www)\.(?:[^\s\"<>|()`.!?,]+\.)+[a-zA-Z]{{2,4}}(?:/{_URL_TAIL})?)"),
    _rule(rf"((?:[^\s\"`'<>|().!?,;:/$\-_]{{3,}}\.)+(?:com|org|edu)(?:/{_URL_TAIL})?)"),
    _EMAIL,
    # AT&T, US$, C++
    _rule(r"([A-Z]+(?:(?:&|&(?i:amp);|\+)[A-Z]+)+)", _amp),
    _rule(r"([A-Z]{1,2}\$)"),
    _rule(r"([cC]\+\+|[cCfF]#)"),
    BEFORE_PUNCTUATION,
)

_FRACTION = r"(?:\d{1,4}[- \u00a0])?\d{1,4}(?:\\?/|\u2044)\d{1,4}"
_PHONE = (
    r"(?:\(\d{2,3}\)[ \u00a0]?|(?:\+\+?)?(?:\d{2,4}[- \u00a0])?\d{2,4}[- \u00a0])\d{3,4}[- \u00a0]?\d{3,5}(?!\w)"
    r"|(?:(?:\+\+?)?\d{2,4}\.)?\d{2,4}\.\d{3,4}\.\d{3,5}"
)
DIGIT_RULES: tuple[Rule, ...] = (
    _rule(rf"({NUMBER})"),
    _rule(rf"({_FRACTION})", _one_token),
    _rule(rf"({_PHONE})", _one_token),
    _rule(r"(\d+[ \u00a0]?[\u00bc\u00bd\u00be\u2153\u2154])", _vulgar),
    _rule(rf"({ALNUM}+)"),
    _rule(rf"(\d+(?:\.\d+)*\.x)(?!{ALNUM})"),
    _rule(rf"({COMPOUND})"),
    _rule(rf"({UNDERSCORED})"),
    _rule(rf"({SLASHED})"),
    _EMAIL,
    BEFORE_PUNCTUATION,
)

_SIGNED = _rule(rf"([-+](?:{NUMBER}))")
_SMILEY = _rule(r"([<>]?[:;=]['\-o*]?[)(dDpPO\]\[{|\\@])[^A-Za-z0-9]", _one_token)
_OPENING_QUOTE = _rule(r'("|&quot;)[A-Za-z0-9$]', _constant("``"))
_CLOSING_QUOTE = _rule(r'("|&quot;)', _constant("''"))
# Two quotation marks of these kinds in a row are one token.
_QUOTE_PAIR = _rule(r"([`\u2018\u2019\u201c\u201d]{2})", _quotes)
_CONTRACTION = _rule(rf"({APOSTROPHE}(?i:s|m|d|ll|re|ve))[^A-Za-z]", _plain_apostrophe)
_DASHES = _rule(r"(-{2,})", _constant("--"))
_APOSTROPHE_WORDS = (
    _rule(r"(['\u2019](?i:em|till?|cause))"),
    _rule(r"(['\u2019][nN]['\u2019]?)(?![A-Za-z])"),
    _rule(r"(['\u2019]\d\ds?)(?![\w'\u2019:])"),
    _rule(r"(['\u2019][tT])(?i:is|was)"),
)

OTHER_RULES: Mapping[str, tuple[Rule, ...]] = {
    "'": (
        _CONTRACTION,
        *_APOSTROPHE_WORDS,
        _rule(r"('')"),
        _rule(r"(')[A-Za-z]\S", _constant("`")),
    ),
    "\u2019": (_rule("(\u2019(?i:s|m|d|ll|re|ve))", _plain_apostrophe), *_APOSTROPHE_WORDS, _QUOTE_PAIR),
    '"': (_OPENING_QUOTE, _CLOSING_QUOTE),
    "`": (_QUOTE_PAIR,),
    "\u2018": (_QUOTE_PAIR,),
    "\u201c": (_QUOTE_PAIR,),
    "\u201d": (_QUOTE_PAIR,),
    "&": (
        _CONTRACTION,
        _OPENING_QUOTE,
        _CLOSING_QUOTE,
        _rule(r"(&(?i:amp|lt|gt|mdash|ndash|apos);)", _entity),
        _rule(r"(&#\d+;)"),
        _rule(r"(&(?i:nbsp);)", _constant()),
    ),
    "<": (
        _rule(r"(</?[A-Za-z!?][^<>\r\n]*>)"),
        _SMILEY,
        _rule(r"(<<)"),
    ),
    ">": (_SMILEY, _rule(r"(>>)")),
    ":": (_rule(rf"({NUMBER})"), _SMILEY),
    ";": (_SMILEY,),
    "=": (_SMILEY,),
    ".": (
        _rule(rf"({NUMBER})"),
        _rule(r"(\.{3,})", _constant("...")),
        _rule(r"(\.(?:[ \u00a0]\.){2,})", _constant("...")),
    ),
    ",": (_rule(rf"({NUMBER})"),),
    "-": (_SIGNED, _DASHES, _rule(r"(-_-)"), _rule(r"(-(?i:[lr][rsc]b)-)")),
    "+": (_SIGNED, _rule(rf"({_PHONE})", _one_token)),
    "(": (_rule(rf"({_PHONE})", _one_token),),
    "!": (_rule(r"([!?]+)"),),
    "?": (_rule(r"([!?]+)"),),
    "*": (_rule(r"(\*+)"),),
    "\\": (_rule(r"((?:\\\*)+)"),),
    "#": (_rule(r"(#[A-Za-z]+)"), _rule(r"(#+)")),
    "@": (_rule(r"(@[A-Za-z_]\w*)"), _rule(r"(@+)")),
    "_": (_rule(r"(_+)"),),
    "^": (_rule(r"(\^_\^)"),),
}
