"""The systems the paper compares with compute what public code computes, from its weights."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from xlan import build_model
from xlan.decoding import beam_search, greedy
from xlan.errors import ModelError, ShapeError, WeightsError
from xlan.lengths import real_positions
from xlan.model.graph import spatial_labels
from xlan.model.released import convert_released
from xlan.model.rows import row_groups
from xlan.model.spec import MODELS, PlainSpec, UpDownSpec
from xlan.types import SpecialIds

FOLDER = Path(__file__).parent.parent / "fixtures" / "baselines"
EVERYTHING = SpecialIds(pad=0, bos=0, eos=0, unk=0)  # nothing is suppressed
PUBLIC = ["show_tell", "newfc", "att2in", "att2in2", "att2all2", "updown", "aoanet"]
# Two more systems come from another implementation, whose checkpoints are not read: its names → ours.
LSTM_A3 = {
    "token_embed.embeddings": "decoder.embed",
    "decoder.attribute_fc": "encoder.embed_attributes",
    "decoder.vfeat_fc": "encoder.embed",
    "decoder.lstm": "decoder.cell",
    "predictor.logits": "decoder.logits",
}
GCN_LSTM = {
    "token_embed.embeddings": "decoder.embed",
    "decoder.att.w_alpha": "decoder.attention.W_a",
    "decoder.att.w_h": "decoder.attention.W_q",
    "decoder.p_att_feats": "decoder.attention.W_k",
    "decoder.lstm1": "decoder.attention_lstm",
    "decoder.lstm2": "decoder.language_lstm",
    "encoder.gcn_loop": "encoder.own",
    "encoder.gcn_loop_gate": "encoder.own_gate",
    "encoder.gcn_sub": "encoder.outgoing",
    "encoder.gcn_sub_gate": "encoder.outgoing_gate",
    "encoder.gcn_obj": "encoder.incoming",
    "encoder.gcn_obj_gate": "encoder.incoming_gate",
    "encoder": "encoder",
    "predictor.logits": "decoder.logits",
}


@dataclass(frozen=True)
class Numbers:
    """A public model at small size: its weights in our model, its inputs and what it computed."""

    tag: str
    model: object
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]  # by our names

    def encode(self):
        features, mask = self.inputs["region_features"].double(), self.inputs["region_mask"]
        if self.tag == "lstm_a3":  # its attributes come from elsewhere
            return self.model.encoder.with_attributes(self.inputs["attributes"].double(), features, mask)
        if self.tag == "gcn_lstm":  # and its graph
            return self.model.encoder.with_labels(features, mask, self.inputs["relation"])
        return self.model.encode(features, mask)

    def logits(self):
        tokens, lengths = self.inputs["inputs"], self.inputs["lengths"]
        groups = row_groups(None, len(tokens), 4, tokens.device)
        return self.model.decoder(self.encode(), tokens, lengths, groups)

    @property
    def real(self):
        return real_positions(self.inputs["lengths"], self.inputs["inputs"].shape[1])


def part(tensors, name):
    return {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}


def renamed(theirs, names):
    ours = {}
    for name, tensor in theirs.items():
        stem, _, leaf = name.rpartition(".")
        leaf = {"encoder.bias": "label_bias", "encoder.gate_bias": "label_gate"}.get(name, leaf)
        ours[f"{names[stem]}.{leaf}"] = tensor
    if "decoder.attention.W_k.bias" in ours:  # the same bias, on the other side of the sum
        ours["decoder.attention.W_q.bias"] = ours.pop("decoder.attention.W_k.bias")
    return ours


def load(tag):
    tensors = load_file(FOLDER / f"{tag}.safetensors")
    weights = {name: tensor.double() for name, tensor in part(tensors, "weights").items()}
    gradients = part(tensors, "gradients")
    if tag == "lstm_a3":
        spec = PlainSpec(cell="lstm", word_relu=True, attributes=30, vocab_size=50, feature_dim=36, dim=24)
        weights, gradients = renamed(weights, LSTM_A3), renamed(gradients, LSTM_A3)
    elif tag == "gcn_lstm":
        spec = UpDownSpec(graph="spatial", vocab_size=50, feature_dim=36, dim=24, attention_dim=20)
        weights, gradients = renamed(weights, GCN_LSTM), renamed(gradients, GCN_LSTM)
    else:
        heads = 4 if tag == "aoanet" else None
        spec, weights = convert_released(weights, heads=heads)
        if "ctx2att.bias" in gradients and tag != "aoanet":  # two biases that act as one: the gradient is either's
            gradients["ctx2att.bias"] = torch.zeros_like(gradients["ctx2att.bias"])
        _, gradients = convert_released(gradients, heads=heads)
    model = build_model(spec).double().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert missing == (["encoder.attributes.weight", "encoder.attributes.bias"] if tag == "lstm_a3" else [])
    return Numbers(tag, model, part(tensors, "inputs"), part(tensors, "outputs"), gradients)


@pytest.fixture(scope="module", params=[*PUBLIC, "lstm_a3", "gcn_lstm"])
def public(request):
    return load(request.param)


def test_teacher_forced_log_probabilities(public):
    log_probs = F.log_softmax(public.logits(), dim=-1)
    torch.testing.assert_close(log_probs, public.outputs["tf_logprobs"][public.real], rtol=0, atol=1e-9)


def test_loss_and_its_gradient_for_every_parameter(public):
    public.model.zero_grad()
    loss = F.cross_entropy(public.logits(), public.inputs["targets"][public.real])
    torch.testing.assert_close(loss.reshape(1), public.outputs["xe_loss"], rtol=0, atol=1e-9)
    loss.backward()
    parameters = {k: p.grad for k, p in public.model.named_parameters() if not k.startswith("encoder.attributes.")}
    assert parameters.keys() == public.gradients.keys()
    for name, gradient in parameters.items():
        torch.testing.assert_close(gradient, public.gradients[name], rtol=0, atol=1e-9, msg=name)


def test_stepping_gives_the_same_log_probabilities_and_attention(public):
    state = public.model.start(public.encode(), trace=True).select(torch.arange(4).repeat_interleave(2))
    alpha = public.outputs.get("tf_alpha")
    for t in range(public.inputs["inputs"].shape[1]):
        log_probs, state = public.model.step(public.inputs["inputs"][:, t], state)
        real = public.real[:, t]
        torch.testing.assert_close(log_probs[real], public.outputs["tf_logprobs"][:, t][real], rtol=0, atol=1e-9)
        if alpha is None:
            assert state.trace is None
            continue
        looked = alpha[:, t] if alpha.dim() == 3 else alpha[:, t].mean(dim=1)  # heads are averaged
        torch.testing.assert_close(state.trace.spatial[real], looked[real], rtol=0, atol=1e-9)


def sentences(result):
    """`[B, K, 12]` ids, zeros behind the end."""
    return F.pad(result.ids, (0, 12 - result.ids.shape[-1]))


def test_greedy_sentences(public):
    result = greedy(public.model, public.encode(), EVERYTHING, max_length=12)
    assert torch.equal(sentences(result)[:, 0], public.outputs["greedy_seq"])
    theirs = public.outputs["greedy_logprobs"].sum(1)
    torch.testing.assert_close(result.totals[:, 0], theirs, rtol=0, atol=1e-9)


def test_beams(public):
    rule = "earlier" if public.tag in PUBLIC else "released"
    for name, unknown in (("beam3", 0), ("beam3_nounk", 49)):
        if f"{name}_seq" not in public.outputs:
            assert rule == "released"
            continue
        special = replace(EVERYTHING, unk=unknown)
        result = beam_search(public.model, public.encode(), special, width=3, max_length=12, rule=rule)
        assert torch.equal(sentences(result), public.outputs[f"{name}_seq"])
        torch.testing.assert_close(result.totals, public.outputs[f"{name}_score"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("show-tell", 12_871_440),
        ("lstm", 13_400_848),
        ("att2in", 14_451_985 - 513),  # less the biases that have no effect of their own
        ("att2all", 15_239_953 - 513),
        ("updown", 52_125_025 - 513),
        ("aoanet", 85_562_640),
        ("lstm-a3", 30_960_912 + 1000 * 2048 + 1000),  # and the layer that finds the attributes
        ("gcn-lstm-spatial", 71_395_613),
    ],
)
def test_published_parameter_counts(name, count):
    with torch.device("meta"):
        model = build_model(name, vocab_size=9488)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_the_table_of_systems_is_true():
    docs = (FOLDER.parent.parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+) \| [^|]+ \|$", docs, re.M)
    assert len(rows) == 9
    for name, count in rows:
        with torch.device("meta"):
            model = build_model(name)
        assert f"{sum(parameter.numel() for parameter in model.parameters()):,}" == count, name
        assert f"{name}-tiny" in MODELS
        for stage in ("", "_scst"):
            assert (FOLDER.parent.parent.parent / f"configs/coco/{name.replace('-', '_')}{stage}.yaml").exists()


@pytest.mark.parametrize(("key", "width", "height"), [("square", 1, 1), ("640x360", 640, 360)])
def test_labels_of_the_spatial_graph(key, width, height):
    worked = json.loads((FOLDER / "spatial_graph.json").read_text())
    scale = torch.tensor([width, height, width, height], dtype=torch.float64) / (width**2 + height**2) ** 0.5
    boxes = torch.tensor([worked["boxes"]], dtype=torch.float64) * scale
    assert spatial_labels(boxes)[0].tolist() == worked[key]


def test_looking_back_cuts_the_gradient_and_starts_from_nothing():
    """With the columns of the query that look back set to zero, it is Up-Down."""
    torch.manual_seed(0)
    back = build_model("updown-lb-tiny", vocab_size=9, feature_dim=5, dim=6, attention_dim=4).double().eval()
    plain = build_model("updown-tiny", vocab_size=9, feature_dim=5, dim=6, attention_dim=4).double().eval()
    weights = dict(back.state_dict())
    weights["decoder.attention.W_q.weight"] = weights["decoder.attention.W_q.weight"][:, :6]
    plain.load_state_dict(weights)
    features, tokens, lengths = torch.randn(2, 3, 5, dtype=torch.float64), torch.ones(2, 4).long(), torch.tensor([4, 2])
    first = torch.tensor([0, 4])
    one, two = back(features, None, tokens, lengths), plain(features, None, tokens, lengths)
    torch.testing.assert_close(one[first], two[first], msg="nothing was attended before the first word")
    assert not torch.allclose(one, two)
    with torch.no_grad():
        back.decoder.attention.W_q.weight[:, 6:] = 0
    torch.testing.assert_close(back(features, None, tokens, lengths), two)


def test_attributes_are_pooled_over_regions_that_exist():
    model = build_model("lstm-a3-tiny", vocab_size=9, feature_dim=5).double()
    features = torch.randn(1, 4, 5, dtype=torch.float64)
    votes = model.encoder.attributes(features[0, :2])
    expected = torch.sigmoid(votes.exp().mean(0).log())
    mask = torch.tensor([[True, True, False, False]])
    torch.testing.assert_close(model.encoder.probabilities(features, mask)[0], expected)


def test_attributes_start_from_a_word_head():
    encoder = build_model("lstm-a3-tiny", vocab_size=9, feature_dim=5).encoder
    weight, bias = torch.randn(20, 5), torch.randn(20)
    encoder.start_from(weight, bias)
    assert torch.equal(encoder.attributes.weight, weight)
    with pytest.raises(ShapeError, match="expected a head of 20 words on features 5 wide, got 7 on 5; build the model"):
        encoder.start_from(torch.randn(7, 5), torch.randn(7))
    with pytest.raises(ShapeError, match=r"attributes: expected shape \[2, 20\], got \[2, 19\]"):
        encoder.with_attributes(torch.rand(2, 19), torch.randn(2, 3, 5))


def test_a_graph_model_needs_boxes():
    model = build_model("gcn-lstm-spatial-tiny", vocab_size=9, feature_dim=5)
    with pytest.raises(ModelError, match="boxes: this model builds a graph from the boxes of the regions, got none"):
        model.encode(torch.randn(2, 3, 5))
    with pytest.raises(ShapeError, match=r"boxes: expected shape \[2, 3, 4\], got \[2, 4, 4\]"):
        model.encode(torch.randn(2, 3, 5), None, torch.rand(2, 4, 4))


def test_refiner_layers_start_equal():
    layers = build_model("aoanet-tiny", vocab_size=9, feature_dim=5).encoder.layers
    for one, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        assert torch.equal(one, other)
        assert one is not other


@pytest.mark.parametrize("tag", PUBLIC)
def test_faults_of_a_public_checkpoint_are_listed(tag):
    weights = part(load_file(FOLDER / f"{tag}.safetensors"), "weights")
    del weights["logit.bias"]
    weights["surprise.weight"] = torch.zeros(2)
    with pytest.raises(WeightsError, match=r"missing: decoder\.logits\.bias; unexpected: surprise\.weight$"):
        convert_released(weights)


def test_only_aoanet_is_told_its_heads():
    weights = part(load_file(FOLDER / "updown.safetensors"), "weights")
    with pytest.raises(WeightsError, match="only an AoANet needs to be told its number of heads, got heads=4"):
        convert_released(weights, heads=4)
