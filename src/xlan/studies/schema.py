"""What a study is: a recipe, the rows that change something in it, and the seeds.

recipe: configs/coco/study.yaml
output: out/studies/ablation
set: {data.captions: dataset.json, data.features: features}
seeds: [1, 2, 3]
against: base
rows:
  base: {set: {model.name: ablation-base}}
  4x: {set: {model.name: ablation-4x}, seeds: [1]}
scoring: {split: test, metrics: [bleu, rouge, cider]}
then: {recipe: configs/coco/study_scst.yaml, best: 3}      # optional: a second stage for the best rows
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

from pydantic import Field, ValidationError, field_validator, model_validator

from xlan.config import load_config
from xlan.config.explain import explain
from xlan.config.load import read_yaml_file
from xlan.config.schema import RunConfig, Section
from xlan.errors import ConfigError, ModelError
from xlan.metrics.report import METRICS
from xlan.model.spec import check_has_attributes, model_spec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")

Changes: TypeAlias = dict[str, Any]
Seeds: TypeAlias = Annotated[tuple[int, ...], Field(min_length=1, max_length=100)]


def _once(seeds: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if seeds is not None and (twice := [seed for seed in seeds if seeds.count(seed) > 1]):
        raise ValueError(f"seeds: {twice[0]} is given twice; each seed is one run")
    return seeds


class RowConfig(Section):
    """One row of the table."""

    set: Changes = Field(default_factory=dict, description="changes to the recipe: dotted key → value")
    seeds: Seeds | None = Field(default=None, description="seeds of this row; those of the study when absent")
    note: str = Field(default="", max_length=500, description="a remark that is printed below the table")

    _seeds_once = field_validator("seeds")(_once)


class ScoringConfig(Section):
    """How the finished runs are scored."""

    split: str = Field(default="test", min_length=1, description="split that is captioned and scored")
    beams: int = Field(default=3, ge=1, le=50)
    max_length: int = Field(default=17, ge=1, le=200)
    metrics: tuple[str, ...] = Field(default=("bleu", "meteor", "rouge", "cider"), min_length=1)
    samples: int = Field(default=2000, ge=10, le=1_000_000, description="bootstrap samples of the intervals")

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in metrics if name not in METRICS]:
            raise ValueError(f"scoring.metrics: there is no metric {unknown[0]!r}; choose from: {', '.join(METRICS)}")
        return metrics


class ThenConfig(Section):
    """A second stage that starts from the best weights of the first, for some of the rows."""

    recipe: str = Field(description="configuration of the second stage; model.init is filled in")
    set: Changes = Field(default_factory=dict, description="changes to that recipe")
    rows: tuple[str, ...] = Field(default=(), description="rows that take part; or give `best`")
    best: int | None = Field(default=None, ge=1, description="this many rows with the best mean validation CIDEr")
    seeds: Seeds | None = Field(default=None, description="only runs of these seeds; all when absent")

    _seeds_once = field_validator("seeds")(_once)

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if bool(self.rows) == (self.best is not None):
            raise ValueError("then needs either 'rows' (names) or 'best' (a number)")
        return self


class StudyConfig(Section):
    """A whole study."""

    recipe: str = Field(description="configuration that every row changes")
    output: str = Field(description="folder of the study")
    set: Changes = Field(default_factory=dict, description="changes to the recipe for all rows")
    seeds: Seeds = (1,)
    against: str = Field(description="the row that the others are compared with")
    rows: dict[str, RowConfig] = Field(min_length=1)
    scoring: ScoringConfig = ScoringConfig()
    then: ThenConfig | None = None

    _seeds_once = field_validator("seeds")(_once)

    @field_validator("rows", mode="before")
    @classmethod
    def _text(cls, rows: Any) -> Any:
        if isinstance(rows, dict) and (other := [name for name in rows if not isinstance(name, str)]):
            raise ValueError(f"row {other[0]}: expected a name; put it in quotation marks: '{other[0]}'")
        return rows

    @field_validator("rows")
    @classmethod
    def _names(cls, rows: dict[str, RowConfig]) -> dict[str, RowConfig]:
        for name in rows:
            if not NAME.fullmatch(name):
                raise ValueError(f"row {name!r}: names are made of letters, digits and . _ + - (they name folders)")
        return rows

    @model_validator(mode="after")
    def _known_rows(self) -> Self:
        named = {"against": (self.against,), "then.rows": self.then.rows if self.then is not None else ()}
        for key, names in named.items():
            if unknown := [name for name in names if name not in self.rows]:
                raise ValueError(f"{key} names {unknown[0]!r}, which is not a row ({', '.join(self.rows)})")
        if self.then is not None and self.then.best is not None and self.then.best > len(self.rows):
            raise ValueError(f"then.best is {self.then.best}, but there are only {len(self.rows)} rows")
        if self.then is not None and (taken := [f"{name}+" for name in self.rows if f"{name}+" in self.rows]):
            raise ValueError(f"row {taken[0]!r}: so the second stage of {taken[0][:-1]!r} is called; rename the row")
        return self


def load_study(path: str | os.PathLike[str]) -> StudyConfig:
    """Read a study and check every run of it against the schema of configurations, before anything is trained.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong; the message names it.
    """
    source = Path(path)
    try:
        study = StudyConfig.model_validate(read_yaml_file(source))
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(explain(detail, StudyConfig) for detail in error.errors())}") from None
    for name in study.rows:
        row_config(study, name, study.output, seed=0)
    if study.then is not None:
        for name in study.then.rows or study.rows:
            then_config(study, name, study.output, seed=0)
    return study


def row_config(study: StudyConfig, row: str, output: str | os.PathLike[str], *, seed: int) -> RunConfig:
    """The checked configuration of one run of the first stage.

    Raises:
        ConfigError: the row's changes do not fit the recipe, or its model cannot be built; the message names the row.
    """
    return _checked(f"row {row!r}", study.recipe, overrides(study, row, output, seed=seed))


def then_config(study: StudyConfig, row: str, output: str | os.PathLike[str], *, seed: int) -> RunConfig:
    """The same of the second stage of a row, which `then` must ask for.

    Raises:
        ConfigError: the changes do not fit the recipe of the second stage; the message says so.
    """
    assert study.then is not None
    changes = then_overrides(study, row, output, init=output, seed=seed)
    return _checked(f"then, row {row!r}", study.then.recipe, changes)


def _checked(what: str, recipe: str, changes: list[str]) -> RunConfig:
    try:
        config = load_config(recipe, changes)
        if config.model.init is None and config.model.name is not None:
            spec = model_spec(config.model.name, **config.model.options)
            if config.model.attributes is not None:
                check_has_attributes(spec)
    except (ConfigError, ModelError) as error:
        raise ConfigError(f"{what}: {error}") from None
    if config.data.captions is None or config.data.features is None:
        raise ConfigError(
            f"{what}: a study needs files: set data.captions and data.features (`xlan data shapes` draws some)"
        )
    return config


def overrides(study: StudyConfig, row: str, output: str | os.PathLike[str], *, seed: int) -> list[str]:
    """What `xlan train RECIPE …` is given for one run."""
    changes = {**study.set, **study.rows[row].set, "seed": seed, "output": os.fspath(output)}
    return as_overrides(changes)


def then_overrides(
    study: StudyConfig,
    row: str,
    output: str | os.PathLike[str],
    *,
    init: str | os.PathLike[str],
    seed: int,
) -> list[str]:
    """The same for the second stage of a row: the data of the first, the changes of `then`, the weights in `init`."""
    assert study.then is not None
    first = {**study.set, **study.rows[row].set}
    shared = {key: value for key, value in first.items() if f"{key}.".startswith("data.")}
    start = {"model.init": os.fspath(init), "seed": seed, "output": os.fspath(output)}
    return as_overrides({**shared, **study.then.set, **start})


def as_overrides(changes: Changes) -> list[str]:
    """Dotted keys and values as `key=value`; values are written as YAML on one line, which JSON is.

    Letters stay as they are: YAML does not read JSON's escapes of two halves. What YAML takes for a date is text.
    """
    return [f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in changes.items()]
