"""What holds for every model of the paper."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from xlan import build_model
from xlan.errors import ModelError, ShapeError
from xlan.lengths import real_positions
from xlan.model import attention, interface
from xlan.model.attention import check_regions
from xlan.model.spec import PlainSpec


def step_through(model, features, mask, tokens, owner):
    """Log-probabilities `[C, T, V]` word by word."""
    state = model.start(model.encode(features, mask)).select(owner)
    steps = []
    for t in range(tokens.shape[1]):
        log_probs, state = model.step(tokens[:, t], state)
        steps.append(log_probs)
    return torch.stack(steps, 1)


def test_incremental_decoding_equals_teacher_forcing(small_model, images, captions):
    tokens, lengths = captions
    logits = small_model(*images, tokens, lengths)
    stepped = step_through(small_model, *images, tokens, torch.arange(3).repeat_interleave(2))
    expected = stepped[real_positions(lengths, tokens.shape[1])]
    torch.testing.assert_close(F.log_softmax(logits, -1), expected, rtol=1e-10, atol=1e-12)


def test_captions_in_any_order_and_number_per_image(small_model, images, captions):
    tokens, lengths = captions
    owner = torch.tensor([2, 0, 1, 1, 1, 0])
    logits = torch.split(small_model(*images, tokens, lengths, owner), lengths.tolist())
    for row, image in enumerate(owner.tolist()):
        alone = small_model(
            images[0][image : image + 1], images[1][image : image + 1], tokens[row : row + 1], lengths[row : row + 1]
        )
        torch.testing.assert_close(logits[row], alone, rtol=1e-10, atol=1e-12)


def test_padded_regions_change_nothing(small_model, images, captions):
    features, mask = images
    here = small_model(features, mask, *captions)
    there = small_model(features.masked_fill(~mask.unsqueeze(-1), float("nan")), mask, *captions)
    torch.testing.assert_close(there, here, rtol=0, atol=0)
    wider = small_model(F.pad(features, (0, 0, 0, 3), value=7.0), F.pad(mask, (0, 3)), *captions)
    torch.testing.assert_close(wider, here, rtol=1e-12, atol=1e-13)


def test_padding_leaves_every_gradient_finite(small_model, images, captions):
    features, mask = images
    small_model(features.masked_fill(~mask.unsqueeze(-1), float("nan")), mask, *captions).sum().backward()
    for name, parameter in small_model.named_parameters():
        assert parameter.grad is not None, f"{name} is not used in training"
        assert torch.isfinite(parameter.grad).all(), name


def test_order_of_regions_does_not_matter(small_model, images, captions):
    features, mask = images
    order = torch.tensor([4, 2, 0, 1, 3])
    here = small_model(features, mask, *captions)
    there = small_model(features[:, order], mask[:, order], *captions)
    torch.testing.assert_close(there, here, rtol=1e-10, atol=1e-12)


def test_no_mask_means_all_regions(small_model, images, captions):
    features, mask = images
    torch.testing.assert_close(
        small_model(features, None, *captions), small_model(features, torch.ones_like(mask), *captions)
    )


def test_same_seed_same_model_and_same_training_step(small_model, images, captions, rebuild):
    def run():
        torch.manual_seed(11)
        model = rebuild(small_model.spec).double().train()
        logits = model(*images, *captions)
        logits.sum().backward()
        return logits, [parameter.grad for parameter in model.parameters()]

    (one, grads_one), (two, grads_two) = run(), run()
    assert torch.equal(one, two)
    assert all(torch.equal(a, b) for a, b in zip(grads_one, grads_two, strict=True))


def test_bfloat16_autocast_trains(small_model, images, captions, rebuild):
    model = rebuild(small_model.spec).train()
    features, mask = images
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(features.float(), mask, *captions)
    F.cross_entropy(logits.float(), torch.zeros(logits.shape[0], dtype=torch.int64)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32, name
        assert torch.isfinite(parameter.grad).all(), name


def test_bfloat16_autocast_stays_near_float32(small_model, images, captions, rebuild):
    model = rebuild(small_model.spec).eval()
    features, mask = images
    exact = model(features.float(), mask, *captions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(features.float(), mask, *captions)
    assert (rough.float() - exact).abs().max() < 0.1


def test_half_precision_weights_decode(small_model, images, rebuild):
    model = rebuild(small_model.spec).eval().to(torch.bfloat16)
    log_probs, _ = model.step(
        torch.zeros(3, dtype=torch.int64), model.start(model.encode(images[0].bfloat16(), images[1]))
    )
    assert log_probs.dtype == torch.bfloat16
    assert torch.isfinite(log_probs).all()


def test_trace_shows_where_it_looked(small_model, images):
    features, mask = images
    state = small_model.start(small_model.encode(features, mask), trace=True).select(torch.tensor([2, 0, 0, 1]))
    _, state = small_model.step(torch.tensor([1, 2, 3, 4]), state)
    trace = state.trace
    if isinstance(small_model.spec, PlainSpec):
        assert trace is None, "a model without attention has nothing to show"
        return
    assert trace.spatial.shape == (4, 5)
    torch.testing.assert_close(trace.spatial.sum(1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(trace.spatial[0, 1:], torch.zeros(4, dtype=torch.float64)), "row 0 is image 2: one region"
    if trace.channel is not None:
        assert trace.channel.shape == (4, small_model.spec.dim)
    _, quiet = small_model.step(torch.tensor([1, 2, 3]), small_model.start(small_model.encode(features, mask)))
    assert quiet.trace is None


def test_rows_live_on_when_images_leave(small_model, images):
    features, mask = images
    state = small_model.start(small_model.encode(features, mask))
    _, state = small_model.step(torch.tensor([1, 1, 1]), state)
    together, _ = small_model.step(torch.tensor([4, 4]), state.select(torch.tensor([2, 2])))
    alone = small_model.start(small_model.encode(features[2:], mask[2:]))
    _, alone = small_model.step(torch.tensor([1]), alone)
    expected, _ = small_model.step(torch.tensor([4]), alone)
    torch.testing.assert_close(together, expected.expand(2, -1), rtol=1e-10, atol=1e-12)


def test_a_state_can_be_used_twice(small_model, images):
    """Steps do not change the state they are given."""
    state = small_model.start(small_model.encode(*images))
    _, state = small_model.step(torch.tensor([1, 2, 3]), state)
    first, _ = small_model.step(torch.tensor([4, 5, 6]), state)
    small_model.step(torch.tensor([7, 8, 9]), state)
    again, _ = small_model.step(torch.tensor([4, 5, 6]), state)
    assert torch.equal(first, again)


def test_log_probabilities_are_normalised(small_model, images):
    log_probs, _ = small_model.step(torch.tensor([1, 2, 3]), small_model.start(small_model.encode(*images)))
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("tokens", [torch.tensor([1]), torch.tensor([1, 2, 3, 4]), torch.tensor([[1], [2], [3]])])
def test_a_step_takes_one_word_per_row(small_model, images, tokens):
    with pytest.raises(ShapeError, match=r"tokens: expected one id per row \[3\], got \["):
        small_model.step(tokens, small_model.start(small_model.encode(*images)))


@pytest.mark.parametrize("wrong", [-1, 10_000])
def test_a_step_takes_words_of_the_vocabulary(small_model, images, wrong):
    with pytest.raises(ShapeError, match=rf"tokens: expected ids 0 to \d+, got .*{wrong}"):
        small_model.step(torch.tensor([1, wrong, 1]), small_model.start(small_model.encode(*images)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xlan-tiny", "xtransformer-tiny", "transformer-tiny"])
def test_compiled_model_equals_eager(name, images, captions):
    torch.manual_seed(0)
    model = build_model(name, vocab_size=23, feature_dim=12, dim=16, heads=4, hidden_dim=4).eval()
    features, mask = images
    eager = model(features.float(), mask, *captions)
    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager")(features.float(), mask, *captions)
        summary = torch.compile(model.encode, backend="aot_eager", fullgraph=True)(features.float(), mask).summary
    torch.testing.assert_close(compiled, eager.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(summary, model.encode(features.float(), mask).summary.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(6, dtype=torch.int64)}, "tokens: expected shape [captions, words], got [6]"),
        ({"tokens": torch.zeros(0, 7, dtype=torch.int64)}, "at least one image and one word, got 3 images, [0, 7]"),
        ({"features": torch.zeros(0, 5, 12)}, "at least one image and one word, got 0 images, [6, 7]"),
        ({"tokens": torch.zeros(5, 7, dtype=torch.int64), "lengths": torch.ones(5, dtype=torch.int64)}, "give owner"),
        ({"lengths": torch.ones(4, dtype=torch.int64)}, "lengths: expected one per caption [6], got [4]"),
        ({"lengths": torch.tensor([7, 3, 5, 5, 0, 6])}, "lengths: expected values from 1 to 7, got 0 to 7"),
        ({"lengths": torch.tensor([8, 3, 5, 5, 1, 6])}, "lengths: expected values from 1 to 7, got 1 to 8"),
        ({"owner": torch.tensor([0, 0, 1, 1, 2, 3])}, "owner: expected images 0 to 2, got 0 to 3"),
        ({"tokens": torch.full((6, 7), 23)}, "tokens: expected ids 0 to 22, got 23 to 23; is this its vocabulary?"),
        ({"features": torch.zeros(3, 5, 13)}, "features: expected shape [images, regions, 12], got [3, 5, 13]"),
        ({"mask": torch.zeros(3, 5, dtype=torch.bool)}, "image 0 of the batch has no valid region"),
    ],
)
def test_bad_input_is_refused_in_words(images, captions, change, message):
    model = build_model("xlan-tiny", vocab_size=23, feature_dim=12)
    given = {"features": images[0].float(), "mask": images[1], "tokens": captions[0], "lengths": captions[1]}
    with pytest.raises(ShapeError) as error:
        model(**(given | change))
    assert message in str(error.value)


def test_scheduled_sampling_feeds_words_of_its_own(images, captions):
    torch.manual_seed(0)
    model = build_model("xlan-tiny", vocab_size=23, feature_dim=12).double().eval()
    plain = model(*images, *captions)
    torch.testing.assert_close(model(*images, *captions, scheduled_sampling=1e-12), plain)
    mixed = model(*images, *captions, scheduled_sampling=1.0)
    first = torch.cat([torch.zeros(1, dtype=torch.int64), captions[1].cumsum(0)[:-1]])
    torch.testing.assert_close(mixed[first], plain[first], msg="the first word is always bos")
    assert not torch.allclose(mixed, plain)


def test_scheduled_sampling_is_refused_where_it_makes_no_sense(images, captions):
    with pytest.raises(ModelError, match=r"takes only 0, got 0\.2; use it with X-LAN"):
        build_model("xtransformer-tiny", vocab_size=23, feature_dim=12).double()(
            *images, *captions, scheduled_sampling=0.2
        )
    with pytest.raises(ModelError, match=r"expected a probability from 0 to 1, got 1\.5"):
        build_model("xlan-tiny", vocab_size=23, feature_dim=12).double()(*images, *captions, scheduled_sampling=1.5)


def test_a_mask_that_hides_nothing_is_dropped_at_the_border(small_model, images):
    features, mask = images
    assert small_model.encode(features, torch.ones_like(mask)).mask is None
    assert torch.equal(small_model.encode(features, mask).mask, mask)


def test_regions_are_checked_once(small_model, images, captions, monkeypatch):
    checked = []
    for module in (attention, interface):
        monkeypatch.setattr(module, "check_regions", lambda *given: checked.append(given) or check_regions(*given))
    small_model(*images, *captions)
    assert len(checked) == 1
