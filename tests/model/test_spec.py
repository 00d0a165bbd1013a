"""Named models and their numbers."""

from __future__ import annotations

import json

import pytest
import torch

from xlan import build_model
from xlan.errors import ModelError
from xlan.model.spec import MODELS, model_spec, spec_from_dict, spec_to_dict


@pytest.mark.parametrize("name", MODELS)
def test_specs_survive_json(name):
    assert spec_from_dict(json.loads(json.dumps(spec_to_dict(MODELS[name])))) == MODELS[name]


@pytest.mark.parametrize("name", MODELS)
def test_every_name_builds_at_full_size(name):
    with torch.device("meta"):
        model = build_model(name)
    assert model.spec == MODELS[name]


def test_the_ablation_follows_the_papers_table():
    rows = [MODELS[name] for name in MODELS if name.startswith("ablation-")]
    assert [(row.depth, row.decoder_attention, row.sigma) for row in rows] == [
        (0, "conventional", "relu"),
        (0, "xlinear", "relu"),
        (1, "xlinear", "relu"),
        (2, "xlinear", "relu"),
        (3, "xlinear", "relu"),
        (4, "xlinear", "relu"),
        (4, "xlinear", "elu"),
    ]
    assert {(row.form, row.dim, row.heads, row.hidden_dim) for row in rows} == {("paper", 1024, 1, 512)}


def test_overrides_replace_numbers():
    assert model_spec("xlan", dim=512, depth=2).dim == 512


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("xlam", {}, "model: expected one of xlan, xlan-paper, xtransformer"),
        ("xlan", {"width": 3}, "model 'xlan': unknown key 'width'; expected some of form, vocab_size"),
        ("xlan", {"dim": "wide"}, "model 'xlan': dim must be a whole number from 1 to 16777216, got 'wide'"),
        ("xlan", {"dim": True}, "dim must be a whole number"),
        ("xlan", {"depth": 1000}, "depth must be a whole number from 0 to 256, got 1000"),
        ("xlan", {"dim": 1023}, "heads must divide dim 1023, got 8"),
        ("xlan", {"hidden_dim": 1 << 24}, "heads × hidden_dim must be at most 16777216, got 134217728"),
        ("xlan", {"sigma": "gelu"}, "sigma must be one of relu, elu, celu, got 'gelu'"),
        ("xlan", {"dropout": 1.0}, "dropout must be a probability from 0 to below 1, got 1.0"),
    ],
)
def test_wrong_numbers_are_refused_in_words(name, overrides, message):
    with pytest.raises(ModelError) as error:
        model_spec(name, **overrides)
    assert message in str(error.value)


def test_unknown_architecture():
    with pytest.raises(ModelError, match=r"config\.json: architecture must be one of xlan, .*aoanet, got 'gpt'"):
        spec_from_dict({"architecture": "gpt"})
