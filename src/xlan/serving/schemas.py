"""What clients may ask and what they get, as pydantic models: they check requests and write the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from xlan.errors import DecodingError
from xlan.options import EXPLAINED_RUNNERS_UP, LIMITS, MAX_MUST, MAX_MUST_LENGTH, CaptionOptions
from xlan.serving.problems import Problem

Requirement = Annotated[str, StringConstraints(min_length=1, max_length=MAX_MUST_LENGTH)]


def _within(name: str, default: float | None, description: str) -> Any:
    """A field with the limits that `CaptionOptions` has for it."""
    limit = LIMITS[name]
    return Field(default, ge=limit.low, le=limit.high, description=description)


class Options(BaseModel):
    """How to look for the words: names and types for clients. Limits and exclusions are those of `CaptionOptions`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    beams: int = _within("beams", 3, "Sentences kept while searching; not together with `samples`.")
    samples: int = _within("samples", 0, "Draw this many captions instead of searching.")
    temperature: float = _within(
        "temperature", 1.0, "Below 1, samples keep to likelier words; above 1, they vary more. Needs `samples`."
    )
    top_p: float | None = _within(
        "top_p", None, "Draw from the likeliest words that have this probability together. Needs `samples`."
    )
    seed: int = _within("seed", 0, "The same seed draws the same captions. Needs `samples`.")
    must: list[Requirement] = Field(
        default_factory=list,
        max_length=MAX_MUST,
        description="Words or phrases that have to appear; `dog|dogs` for either.",
    )
    max_length: int = _within("max_length", 20, "Most words, the end of the sentence included.")
    explain: bool = Field(False, description="Also return where the model looked and which words came close.")

    def caption_options(self) -> CaptionOptions:
        """As the pipeline takes them.

        Raises:
            Problem: some of them contradict each other.
        """
        given = self.model_dump(exclude_unset=True)
        explain = given.pop("explain", False)
        given.update(attention=explain, runners_up=EXPLAINED_RUNNERS_UP if explain else 0)
        try:
            return CaptionOptions.of(given)
        except DecodingError as error:
            raise Problem("unusable-options", str(error)) from None


def read_options(values: dict[str, Any], *, typed: bool, text: dict[str, Any] | None = None) -> CaptionOptions:
    """Options from a client.

    Args:
        values: the options.
        typed: whether they come from JSON, where "3" is not a number.
        text: further options as text, from a query string.

    Raises:
        Problem: an option is unknown, given twice, has a value that is not allowed, or contradicts another.
    """
    try:
        if text:
            read = Options.model_validate(text).model_dump(exclude_unset=True)
            if twice := read.keys() & values.keys():
                raise Problem("bad-request", f"{min(twice)!r}: given more than once")
            values = {**values, **read}
        return Options.model_validate(values, strict=typed).caption_options()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])[:60] or "options"
        if first["type"] == "extra_forbidden":
            raise Problem(
                "bad-option", f"{name!r}: no such option; there are {', '.join(Options.model_fields)}"
            ) from None
        raise Problem("bad-option", f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


class RunnerUp(BaseModel):
    """A word that was also possible at this place."""

    text: str
    probability: float = Field(ge=0, le=1)


class LookAnswer(BaseModel):
    """Where the model looked most for a word."""

    box: list[float] = Field(description="x0 y0 x1 y1 as fractions of the picture.")
    share: float = Field(ge=0, description="Share of the word's attention that the box has.")
    region: int | None = Field(description="Its number in `boxes`; null for a thing that was found beside them.")
    thing: int | None = Field(description="Its number in `things`; null for a region without a name.")
    name: str | None = Field(description="What the detector calls it.")
    attribute: str | None = Field(description="Its attribute, such as red, if the detector has attributes.")


class ThingAnswer(BaseModel):
    """Something a detector found."""

    name: str
    attribute: str | None
    score: float = Field(ge=0, le=1, description="How sure the detector is.")
    box: list[float] = Field(description="x0 y0 x1 y1 as fractions of the picture.")


class WordAnswer(BaseModel):
    """One word of a caption."""

    text: str
    probability: float = Field(ge=0, le=1, description="How likely the model found it at its place.")
    confidence: float | None = Field(
        ge=0, le=1, description="Chance that people use the word for this picture too; null for words like 'a', 'of'."
    )
    runners_up: list[RunnerUp] = Field(description="The likeliest other words, best first; empty without `explain`.")
    spatial: list[float] | None = Field(description="Attention over the regions in `boxes`; sums to 1.")
    channel: list[float] | None = Field(description="Channel gate, 0 to 1; null for models without one.")
    looked_at: LookAnswer | None = Field(description="Where it looked most; null without `explain`.")


class OtherAnswer(BaseModel):
    """A further caption of the same picture."""

    caption: str
    confidence: float
    score: float


class Size(BaseModel):
    """Size in pixels, turned upright as EXIF says."""

    width: int
    height: int


class Seconds(BaseModel):
    """Where the time went."""

    queue: float = Field(description="Opening the picture and waiting for the model.")
    model: float = Field(description="In the model, together with the other pictures of the batch.")


class CaptionAnswer(BaseModel):
    """What the model says of a picture."""

    version: int = Field(description="Version of this record; raised when a key changes its meaning or disappears.")
    caption: str
    confidence: float = Field(
        ge=0,
        le=1,
        description="Expected share of the content words that people also use for this picture.",
    )
    score: float = Field(description="Natural log-probability of the whole sentence.")
    words: list[WordAnswer]
    others: list[OtherAnswer] = Field(description="Further captions: from better to worse, or as drawn.")
    boxes: list[list[float]] | None = Field(
        description="Regions that `spatial` refers to, x0 y0 x1 y1 as fractions of the picture; null without `explain`."
    )
    things: list[ThingAnswer] = Field(description="What a detector found; empty without `explain` or a detector.")
    image: Size
    model: str = Field(description="Name of the model.")
    seconds: Seconds


class ProblemAnswer(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str = Field(examples=["urn:xlan:problem:not-a-picture"])
    title: str
    status: int
    detail: str


class OneResult(BaseModel):
    """One of several pictures: either an answer or a problem."""

    answer: CaptionAnswer | None
    problem: ProblemAnswer | None


class BatchAnswer(BaseModel):
    """What the model says of several pictures."""

    results: list[OneResult] = Field(description="One for each picture, in the order they were sent.")


class Health(BaseModel):
    """Whether requests are accepted."""

    status: str = Field(json_schema_extra={"enum": ["ok", "stopping"]})


class LimitsAnswer(BaseModel):
    """What is refused."""

    max_bytes: int = Field(description="Largest picture, in bytes.")
    max_pixels: int = Field(description="Most pixels a picture may have.")
    max_images: int = Field(description="Most pictures in one request.")
    max_cost: int = Field(description="Most steps of the model that a request may ask for.")
    queue: int = Field(description="Most pictures that wait at once.")
    timeout: float = Field(description="Time limit of a request, in seconds.")


class WordScore(BaseModel):
    """A word of the sentence, and what it adds to a score."""

    word: str
    score: float


class FoundAnswer(BaseModel):
    """A photo that was found."""

    photo: str = Field(description="Its key: `GET /v1/photos/KEY` shows it.")
    name: str = Field(description="Its path below the library's folder.")
    score: float = Field(description="How much better the sentence fits it than any photo; 0 is like the others.")
    caption: str = Field(description="Its caption.")
    words: list[WordScore]


class UnknownAnswer(BaseModel):
    """A word that the model does not know."""

    word: str
    nearest: list[str] = Field(description="Known words of similar spelling.")


class SearchAnswer(BaseModel):
    """Photos that a sentence describes."""

    query: str
    unknown: list[UnknownAnswer] = Field(description="Words of the sentence that were left out.")
    photos: int = Field(description="Photos of the library.")
    seconds: float
    found: list[FoundAnswer] = Field(description="Best first.")


class ModelAnswer(BaseModel):
    """The model behind the server."""

    name: str
    card: str = Field(description="The model card, Markdown.")
    architecture: dict[str, Any]
    parameters: int = Field(description="Parameters of the captioning model, the vision network not included.")
    vocabulary: int = Field(description="Words it knows.")
    vision: dict[str, Any] = Field(description="What turns pictures into regions.")
    formats: list[str] = Field(description="Picture formats that are read.")
    limits: LimitsAnswer
