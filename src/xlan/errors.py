"""Everything xlan raises on purpose.

    XlanError                  one line a user can act on: expected, got, what to do
    ├── ConfigError            a configuration key or value is wrong
    ├── DataError              a captions, annotation, result or feature file cannot be used
    │   └── FeatureError       a feature store or feature file is missing, damaged or of the wrong width
    ├── ImageError             a picture was refused or cannot be read
    ├── ModelError             a model cannot be built or loaded
    │   ├── HubError           a model cannot be fetched from the Hub or put there
    │   ├── ShapeError         tensors do not fit together (also a ValueError)
    │   └── WeightsError       a weights file is damaged, foreign or does not match the architecture
    ├── DecodingError          a search was asked for something impossible
    ├── MetricError            a score cannot be computed from what was given
    ├── TrainingError          a run cannot start, continue or be resumed
    ├── BatchError             a job over many pictures cannot start or continue
    ├── SearchError            photos cannot be searched: a query without a known word, an index that cannot be used
    └── MissingExtraError      an optional dependency is not installed (also an ImportError)

The command line prints the message as one line and exits with status 1; it never shows a traceback for these.
"""

from __future__ import annotations


class XlanError(Exception):
    """Base of every error raised on purpose; the message is written for the person who has to act."""


class ConfigError(XlanError):
    """A configuration key or value is wrong."""


class DataError(XlanError):
    """A captions, annotation, result or feature file cannot be used."""


class FeatureError(DataError):
    """A feature store or feature file is missing, damaged or of the wrong width."""


class ImageError(XlanError):
    """A picture was refused or cannot be read."""


class ModelError(XlanError):
    """A model cannot be built or loaded."""


class HubError(ModelError):
    """A model cannot be fetched from the Hub or put there."""


class ShapeError(ModelError, ValueError):
    """Tensors do not fit together."""


class WeightsError(ModelError):
    """A weights file is damaged, foreign or does not match the architecture."""


class DecodingError(XlanError):
    """A search was asked for something impossible."""


class MetricError(XlanError):
    """A score cannot be computed from what was given."""


class TrainingError(XlanError):
    """A run cannot start, continue or be resumed."""


class BatchError(XlanError):
    """A job over many pictures cannot start or continue."""


class SearchError(XlanError):
    """Photos cannot be searched: a query without a known word, an index that cannot be used."""


class MissingExtraError(XlanError, ImportError):
    """An optional dependency is not installed.

    Args:
        what: the feature that needs it, as the user would say it ("METEOR").
        extra: the extra that brings it ("metrics").
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs packages that are not installed; type: pip install "xlan[{extra}]"')


def one_line(error: object) -> str:
    """What another library's error says, short and on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
