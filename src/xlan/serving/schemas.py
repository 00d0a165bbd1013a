"""What clients may ask and what they get, as pydantic models: they check requests and write the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from xlan.options import CaptionOptions
from xlan.serving.problems import Problem

# How many other words an explanation names for each word.
RUNNERS_UP = 4
# Programs that hold every number as a double keep whole numbers up to here.
MAX_SEED = (1 << 53) - 1
_DRAWING_ONLY = ("temperature", "top_p", "seed")

Requirement = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class Options(BaseModel):
    """How to look for the words."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    beams: int = Field(3, ge=1, le=10, description="Sentences kept while searching; not together with `samples`.")
    samples: int = Field(0, ge=0, le=10, description="Draw this many captions instead of searching.")
    temperature: float = Field(
        1.0, ge=0.05, le=10, description="Of the draw: below 1 is bolder, above 1 more varied. Needs `samples`."
    )
    top_p: float | None = Field(
        None,
        ge=0.01,
        le=1,
        description="Draw from the likeliest words that have this probability together. Needs `samples`.",
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="The same seed draws the same captions. Needs `samples`.")
    must: list[Requirement] = Field(
        default_factory=list, max_length=10, description="Words or phrases that have to appear; `dog|dogs` for either."
    )
    max_length: int = Field(20, ge=1, le=50, description="Most words, the end of the sentence included.")
    explain: bool = Field(False, description="Also tell where the model looked and which words nearly won.")

    def caption_options(self) -> CaptionOptions:
        """As the pipeline takes them.

        Raises:
            Problem: some of them contradict each other.
        """
        given = self.model_fields_set
        if self.samples and "beams" in given:
            raise Problem("unusable-options", "beams searches, but samples draws; leave one out")
        useless = [name for name in _DRAWING_ONLY if name in given and getattr(self, name) is not None]
        if useless and not self.samples:
            raise Problem("unusable-options", f"{useless[0]} does something only together with samples")
        return CaptionOptions(
            beams=self.beams,
            samples=self.samples,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            must=tuple(self.must),
            max_length=self.max_length,
            attention=self.explain,
            runners_up=RUNNERS_UP if self.explain else 0,
        )


def read_options(values: dict[str, Any], *, typed: bool) -> CaptionOptions:
    """Options from a client; `typed` when they come from JSON, where "3" is not a number.

    Raises:
        Problem: an option is unknown, has a value that is not allowed, or contradicts another.
    """
    try:
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
    """A word that could have stood at the same place."""

    text: str
    probability: float = Field(ge=0, le=1)


class WordAnswer(BaseModel):
    """One word of a caption."""

    text: str
    probability: float = Field(ge=0, le=1, description="How likely the model found it at its place.")
    runners_up: list[RunnerUp] = Field(description="The likeliest other words, best first; empty without `explain`.")
    spatial: list[float] | None = Field(description="Attention over the regions in `boxes`; sums to 1.")
    channel: list[float] | None = Field(description="Channel gate, 0 to 1; null for models without one.")


class OtherAnswer(BaseModel):
    """A further caption of the same picture."""

    caption: str
    confidence: float
    score: float


class Size(BaseModel):
    """Size in pixels, turned upright."""

    width: int
    height: int


class Seconds(BaseModel):
    """Where the time went."""

    queue: float = Field(description="Opening the picture and waiting for the model.")
    model: float = Field(description="In the model, together with the other pictures of the batch.")


class CaptionAnswer(BaseModel):
    """What the model says of a picture."""

    caption: str
    confidence: float = Field(
        ge=0,
        le=1,
        description="Geometric mean of the probabilities of the words and the end; lower for unfamiliar pictures.",
    )
    score: float = Field(description="Natural log-probability of the whole sentence.")
    words: list[WordAnswer]
    others: list[OtherAnswer] = Field(description="Further captions: from better to worse, or as drawn.")
    boxes: list[list[float]] | None = Field(
        description="Regions that `spatial` refers to, x0 y0 x1 y1 as fractions of the picture; null without `explain`."
    )
    image: Size
    model: str = Field(description="Name of the model.")
    seconds: Seconds


class ProblemAnswer(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str = Field(examples=["urn:xlan:problem:not-a-picture"])
    title: str
    status: int
    detail: str


class Health(BaseModel):
    """Whether requests are accepted."""

    status: str = Field(json_schema_extra={"enum": ["ok", "stopping"]})


class LimitsAnswer(BaseModel):
    """What is refused."""

    max_bytes: int = Field(description="Largest picture, in bytes.")
    max_pixels: int = Field(description="Most pixels a picture may have.")
    queue: int = Field(description="Most requests that wait at once.")
    timeout: float = Field(description="Seconds until a request is given up.")


class ModelAnswer(BaseModel):
    """The model behind the server."""

    name: str
    card: str = Field(description="The model card, Markdown.")
    architecture: dict[str, Any]
    parameters: int = Field(description="Numbers the captioner has learned, vision not counted.")
    vocabulary: int = Field(description="Words it knows.")
    vision: dict[str, Any] = Field(description="What turns pictures into regions.")
    formats: list[str] = Field(description="Picture formats that are read.")
    limits: LimitsAnswer
