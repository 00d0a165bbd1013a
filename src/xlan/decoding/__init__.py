"""Log-probabilities → sentences: greedy, sampling, beam and diverse beam search over any model that can be stepped."""

from xlan.decoding.alternatives import alternatives
from xlan.decoding.beam import beam_search, diverse_beam_search
from xlan.decoding.beam_reference import beam_reference
from xlan.decoding.controls import (
    Control,
    Forbid,
    MaxLength,
    MinLength,
    NoBadEnding,
    NoRepeat,
    Prefix,
    SuppressUnknown,
)
from xlan.decoding.ensemble import Ensemble
from xlan.decoding.greedy import greedy
from xlan.decoding.required import Require
from xlan.decoding.result import DecodingResult, Hypothesis
from xlan.decoding.sample import sample
from xlan.decoding.step import MAX_LENGTH, State, Stepper
from xlan.types import Rule

__all__ = [
    "MAX_LENGTH",
    "Control",
    "DecodingResult",
    "Ensemble",
    "Forbid",
    "Hypothesis",
    "MaxLength",
    "MinLength",
    "NoBadEnding",
    "NoRepeat",
    "Prefix",
    "Require",
    "Rule",
    "State",
    "Stepper",
    "SuppressUnknown",
    "alternatives",
    "beam_reference",
    "beam_search",
    "diverse_beam_search",
    "greedy",
    "sample",
]
