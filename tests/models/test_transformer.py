"""The encoder-decoder Transformer: torch's layers, the masks, tied tables, cached decoding; a captioner."""

from dataclasses import replace

import laws
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.models.text.decoding import Marks, NextToken, Translator, greedy
from saccade.models.text.transformer import Captioner, CaptionerConfig, Transformer, TransformerConfig
from saccade.models.vit import ViTConfig
from saccade.nn.attention import causal
from saccade.nn.block import BlockStyle
from saccade.nn.text.decoder_block import DecoderBlock, encoder_block

STYLE = BlockStyle(placement="post", eps=1e-5)
SMALL = TransformerConfig(
    source=20, vocabulary=23, context=16, width=24, depth=2, heads=3, hidden=32, tie="target", block=STYLE
)
KINDS = {
    "post": SMALL,
    "pre": replace(SMALL, block=replace(STYLE, placement="pre")),
    "rms": replace(SMALL, block=replace(STYLE, norm="rms"), bend="gelu"),
    "power": replace(SMALL, block=replace(STYLE, placement="pre", norm="power")),
    "learned, untied": replace(SMALL, position="learned", tie="none"),
    "all tied": replace(SMALL, source=23, tie="all"),
}
B, M, N = 3, 6, 5
MASK = torch.arange(M) < torch.tensor([[6], [2], [4]])
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind):
    source, target = torch.randint(20, (B, M)), torch.randint(23, (B, N))
    return Transformer(KINDS[kind]).eval(), source, target


def copy(ours, theirs):
    with torch.no_grad():
        chunks = zip(theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True)
        for layer, (weight, bias) in zip((ours.q, ours.k, ours.v), chunks, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())


def randomise(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


SETTINGS = {"dropout": 0.0, "batch_first": True}


@pytest.mark.parametrize("bend", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_an_encoder_block_equals_torchs_layer_on_shared_weights(placement, bend):
    pre = placement == "pre"
    theirs = randomise(nn.TransformerEncoderLayer(24, 3, 48, activation=bend, norm_first=pre, **SETTINGS))
    ours = encoder_block(24, 3, 48, replace(STYLE, placement=placement), bend)
    copy(ours.attention, theirs.self_attn)
    norms = (ours.norm1, ours.norm2) if pre else (ours.add1.norm, ours.add2.norm)
    mine = (ours.mlp.up, ours.mlp.down, *norms)
    for layer, other in zip(mine, (theirs.linear1, theirs.linear2, theirs.norm1, theirs.norm2), strict=True):
        layer.load_state_dict(other.state_dict())
    z = torch.randn(B, M, 24)
    assert_close(ours(z), theirs(z), atol=1e-5, rtol=0)
    expected = theirs(z, src_key_padding_mask=~MASK)
    assert_close(ours(z, MASK.float()[:, None, None]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("bend", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_decoder_block_equals_torchs_layer_on_shared_weights(placement, bend):
    pre = placement == "pre"
    theirs = randomise(nn.TransformerDecoderLayer(24, 3, 48, activation=bend, norm_first=pre, **SETTINGS))
    ours = DecoderBlock(24, 3, 48, replace(STYLE, placement=placement), bend)
    copy(ours.attention, theirs.self_attn)
    copy(ours.cross, theirs.multihead_attn)
    adds = (ours.add1, ours.add2, ours.add3)
    norms = (ours.norm1, ours.norm2, ours.norm3) if pre else tuple(add.norm for add in adds)
    mine = (ours.mlp.up, ours.mlp.down, *norms)
    others = (theirs.linear1, theirs.linear2, theirs.norm1, theirs.norm2, theirs.norm3)
    for layer, other in zip(mine, others, strict=True):
        layer.load_state_dict(other.state_dict())
    z, memory = torch.randn(B, N, 24), torch.randn(B, M, 24)
    future = torch.ones(N, N).triu(1).bool()
    expected = theirs(z, memory, tgt_mask=future, memory_key_padding_mask=~MASK)
    found = ours(z, memory, causal(N), MASK.float()[:, None, None])
    assert_close(found, expected, atol=1e-5, rtol=0)


@each_kind
def test_cached_decoding_equals_full_recomputation(kind):
    model, source, target = made(kind)
    laws.word_by_word_is_the_whole_sentence(model, source, MASK, target)


@each_kind
def test_a_state_can_be_taken_in_any_order(kind):
    model, source, target = made(kind)
    laws.a_state_can_be_taken_in_any_order(model, source, MASK, target)


@each_kind
def test_no_gradient_comes_from_a_later_word(kind):
    model, source, target = made(kind)
    seen = []
    model.decoder.dropout.register_forward_hook(lambda _, __, out: seen.append(out) or out)
    laws.no_gradient_comes_from_a_later_word(model(source, MASK, target), seen[0])


@each_kind
def test_changing_padding_leaves_the_loss_equal_to_the_last_bit(kind):
    model, source, target = made(kind)
    right = torch.arange(N) < torch.tensor([[5], [3], [4]])

    def loss(given, written=target):
        return F.cross_entropy(model(given, MASK, written)[right], target[right])

    laws.padding_changes_no_bit(source, MASK, loss)
    laws.padding_changes_no_bit(target, right, lambda written: loss(source, written))


@each_kind
def test_a_padded_batch_equals_its_sentences_alone(kind):
    model, source, target = made(kind)
    laws.a_padded_batch_is_its_sentences_alone(model, source, MASK, target)


@each_kind
def test_every_parameter_learns(kind):
    model, source, target = made(kind)
    laws.every_parameter_learns(model, source, MASK, target)


def test_the_encoder_looks_both_ways_and_the_decoder_at_all_of_it():
    model, source, target = made("post")
    other = source.clone()
    other[:, -1] = (source[:, -1] + 1) % 20
    assert model.encode(source).ne(model.encode(other))[:, 0].any()
    assert model(source, None, target).ne(model(other, None, target))[:, 0].any()


def test_a_tied_table_is_stored_once_and_learns_from_both_ends():
    tied, untied = (Transformer(replace(SMALL, tie=tie)) for tie in ("target", "none"))
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert extra == 23 * 24
    assert "decoder.unembed.own" not in tied.state_dict()
    untied.load_state_dict(tied.state_dict() | {"decoder.unembed.own": tied.decoder.words.table.weight})
    source, target = torch.randint(20, (B, M)), torch.randint(23, (B, N))
    for model in (tied, untied):
        F.cross_entropy(model(source, None, target).flatten(0, 1), target.flatten()).backward()
    both = untied.decoder.words.table.weight.grad + untied.decoder.unembed.own.grad
    assert_close(tied.decoder.words.table.weight.grad, both, atol=1e-6, rtol=0)


def test_sines_go_on_beyond_the_context_and_learnt_places_end_there_in_words():
    source, target = torch.randint(20, (1, 40)), torch.randint(23, (1, N))
    assert Transformer(SMALL)(source, None, target).isfinite().all()
    with pytest.raises(UsageError, match="the text has 40 tokens, but this model was built for 16"):
        Transformer(replace(SMALL, position="learned"))(source, None, target)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tie": "all"}, "tie is 'all', but the source has 20 words and the target 23; use one vocabulary"),
        ({"bend": "tanh"}, "bend is 'tanh', which is not known"),
        ({"position": "sines"}, "position is 'sines', which is not known"),
        ({"width": 10**9}, "width is 1000000000; expected a number from 1"),
    ],
)
def test_a_config_that_cannot_work_is_refused_in_words(change, words):
    with pytest.raises(UsageError, match=words):
        replace(SMALL, **change)


def test_a_transformer_without_words_to_read_is_refused():
    with pytest.raises(UsageError, match="source is 0, but a Transformer reads words"):
        Transformer(replace(SMALL, source=0))


VIT = ViTConfig(image=(8, 8), patch=4, width=16, depth=1, heads=2, hidden=32, classes=0)
WORDS = ["", "<s>", "</s>", "red", "green", "blue", "left", "right"]
MARKS = Marks(bos=1, eos=2, pad=0)


def painted(count, seed):
    """Pictures whose left or right half has a colour, and their captions: «red left»."""
    generator = torch.Generator().manual_seed(seed)
    colour, side = (torch.randint(n, (count,), generator=generator) for n in (3, 2))
    image = torch.randn(count, 3, 8, 8, generator=generator) * 0.3
    for i in range(count):
        image[i, colour[i], :, 4 * int(side[i]) : 4 * int(side[i]) + 4] += 2
    caption = torch.stack([torch.ones_like(colour), colour + 3, side + 6, torch.full_like(colour, 2)], dim=1)
    return image, caption


def test_a_vit_and_a_decoder_learn_to_tell_what_is_where_in_a_picture():
    style = replace(STYLE, placement="pre")
    text = replace(SMALL, source=0, vocabulary=len(WORDS), depth=1, block=style)
    model = Captioner(CaptionerConfig(vit=VIT, text=text))
    assert isinstance(model, Translator)
    assert isinstance(model, NextToken)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    image, caption = painted(192, seed=0)
    for _ in range(60):
        logits = model(image, None, caption[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), caption[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    image, caption = painted(48, seed=1)
    told = [sentence.tokens for sentence in greedy(model, image, None, MARKS, most=5)]
    right = sum(tokens == tuple(words[1:-1]) for tokens, words in zip(told, caption.tolist(), strict=True))
    assert right >= 46


@pytest.mark.parametrize("width", [16, 24])
def test_a_captioner_bridges_widths_and_has_no_unused_heads(width):
    text = replace(SMALL, source=0, vocabulary=8)
    model = Captioner(CaptionerConfig(vit=replace(VIT, width=width), text=text))
    model(torch.randn(2, 3, 8, 8), None, torch.ones(2, 3, dtype=torch.long)).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_a_captioner_with_a_head_or_with_a_mask_is_refused_in_words():
    text = replace(SMALL, source=0)
    with pytest.raises(UsageError, match=r"vit.classes is 7, but a captioner does not use it; set it to 0"):
        CaptionerConfig(vit=replace(VIT, classes=7), text=text)
    model = Captioner(CaptionerConfig(vit=VIT, text=text))
    with pytest.raises(UsageError, match="a captioner was given a mask, but an image has no padding"):
        model.encode(torch.randn(1, 3, 8, 8), torch.ones(1, 4, dtype=torch.bool))
