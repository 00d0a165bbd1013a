"""Our models compute what the released code computes, from its own weights."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


def close(ours, theirs, *, rtol, atol=1e-12):
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=rtol, atol=atol)


def projected(state):
    """Keys and values of the regions, of every decoder layer."""
    caches = getattr(state, "regions", None) or (state.memory.cache,)
    return [(cache.keys, cache.values) for cache in caches]


def test_region_embedding(reference):
    ours = reference.model.encoder.embed_regions(reference.features)
    close(ours[reference.mask], reference.outputs["att_embed"][reference.mask], rtol=1e-9)


def test_encoder(reference):
    encoded = reference.model.encode(reference.features, reference.mask)
    close(encoded.summary, reference.outputs["enc_global"], rtol=1e-9)
    close(encoded.regions[reference.mask], reference.outputs["enc_regions"][reference.mask], rtol=1e-9)


def test_projected_keys_and_values(reference):
    state = reference.model.start(reference.model.encode(reference.features, reference.mask))
    several = "dec_keys.0" in reference.outputs
    for i, (keys, values) in enumerate(projected(state)):
        suffix = f".{i}" if several else ""
        real = reference.mask[:, None, :].expand(keys.shape[:3])
        close(keys[real], reference.outputs[f"dec_keys{suffix}"][real], rtol=1e-9)
        close(values[real], reference.outputs[f"dec_values{suffix}"][real], rtol=1e-9)


def test_teacher_forced_logits(reference):
    logits = reference.model(reference.features, reference.mask, reference.tokens, reference.lengths)
    close(logits, reference.outputs["tf_logits"][reference.targets >= 0], rtol=1e-9)


def test_stepping_gives_the_teacher_forced_log_probabilities(reference):
    encoded = reference.model.encode(reference.features, reference.mask)
    state = reference.model.start(encoded).select(torch.arange(4).repeat_interleave(2))
    for t in range(reference.tokens.shape[1]):
        log_probs, state = reference.model.step(reference.tokens[:, t], state)
        real = reference.targets[:, t] >= 0
        close(log_probs[real], reference.outputs["tf_logprobs"][:, t][real], rtol=1e-9)


def test_cross_entropy_and_its_gradient_for_every_parameter(reference):
    model = reference.model
    logits = model(reference.features, reference.mask, reference.tokens, reference.lengths)
    loss = F.cross_entropy(logits, reference.targets[reference.targets >= 0])
    close(loss.reshape(1), reference.outputs["xe_loss"], rtol=1e-9)
    loss.backward()
    parameters = dict(model.named_parameters())
    assert parameters.keys() == reference.gradients.keys()
    for name, parameter in parameters.items():
        theirs = reference.gradients[name]
        scale = theirs.abs().max().item()
        # W_b's bias shifts every score alike, so its true gradient is 0 and both sides hold rounding noise.
        torch.testing.assert_close(parameter.grad, theirs, rtol=1e-8, atol=max(1e-8 * scale, 1e-15), msg=name)


def test_label_smoothing_loss(reference):
    logits = reference.model(reference.features, reference.mask, reference.tokens, reference.lengths)
    log_probs = F.log_softmax(logits, dim=-1)
    targets = reference.targets[reference.targets >= 0]
    vocab_size = logits.shape[-1]
    wanted = torch.full_like(log_probs, 0.1 / (vocab_size - 1)).scatter_(1, targets.unsqueeze(1), 0.9)
    loss = (torch.special.xlogy(wanted, wanted) - wanted * log_probs).sum(-1).mean()
    close(loss.reshape(1), reference.outputs["ls_loss"], rtol=1e-9)


def test_float32_stays_within_rounding(reference_f32):
    ref = reference_f32
    logits = ref.model(ref.features, ref.mask, ref.tokens, ref.lengths)
    theirs = ref.outputs["tf_logprobs"][ref.targets >= 0]
    torch.testing.assert_close(F.log_softmax(logits, dim=-1), theirs, rtol=0, atol=5e-5)


@pytest.mark.parametrize(("name", "count"), [("xlan", 75_189_781), ("xtransformer", 137_521_826)])
def test_published_parameter_counts(name, count):
    from xlan import build_model

    with torch.device("meta"):
        model = build_model(name, vocab_size=9488)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
