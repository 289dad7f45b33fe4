"""Dropping patches: nothing changes at keep 1, training and inference agree, and models travel as folders."""

import json
from dataclasses import replace

import pytest
import torch
from small import HYBRID, SMALL, made, pictures
from torch.testing import assert_close

import saccade
from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, UsageError
from saccade.models.build import config_of, from_json, to_json
from saccade.nn import pool, position_kinds
from saccade.nn.block import BlockStyle
from saccade.tasks.classify.prune_loss import logits_loss, ratio_loss, tokens_loss
from saccade.tokens.kinds import KINDS
from saccade.tokens.prune import Predictor, Pruned, PrunedConfig, prune, sample, usual_places
from saccade.tokens.walk import run, start, step
from saccade.weights.formats.tensors import read_tensors, write_safetensors
from saccade.weights.load import load
from saccade.weights.resize import resize
from saccade.weights.save import save_folder

CONV = replace(SMALL, convs=(8, 16), pool="mean")


def agreed(module, image):
    """The decisions that inference takes, as masks."""
    walk, z, found = module.walk(image), module.embed(image), []
    for index, block in enumerate(module.blocks):
        z = walk.before(index, z)
        if index in module.plan.places:
            found.append((walk.trace().owner >= 0).float())
        z = step(block, walk, index, z)
    return found


@pytest.mark.parametrize("by", ["predictor", "attention", "random"])
@pytest.mark.parametrize("config", [SMALL, replace(SMALL, position="rope2d"), CONV, HYBRID])
@torch.no_grad()
def test_keeping_all_is_the_dense_model_bit_for_bit(config, by):
    vit, image = made(config), pictures()
    pruned = prune(vit, 1.0, by=by)
    assert torch.equal(pruned(image), vit(image))
    assert torch.equal(pruned.encode(image), vit.encode(image))
    assert torch.equal(pruned.train()(image), vit(image)) or config in (CONV, HYBRID)


@pytest.mark.parametrize("position", position_kinds.KINDS)
@pytest.mark.parametrize("how", pool.KINDS)
@torch.no_grad()
def test_hiding_patches_equals_dropping_them_when_the_decisions_agree(how, position):
    vit, image = made(replace(SMALL, pool=how, position=position, registers=1)), pictures()
    for by in ("predictor", "attention", "random"):
        pruned = prune(vit, 0.6, (1, 3), by)
        masked = pruned.masked(image, agreed(pruned, image))
        assert_close(masked.logits, pruned(image), atol=1e-5, rtol=0)
        assert (masked.logits - vit(image)).abs().max() > 1e-4


@pytest.mark.parametrize("style", [BlockStyle(placement="post"), BlockStyle(norm="rms", layerscale=0.1)])
@torch.no_grad()
def test_blocks_of_other_styles(style):
    pruned, image = prune(made(replace(SMALL, block=style)), 0.5), pictures()
    assert_close(pruned.masked(image, agreed(pruned, image)).logits, pruned(image), atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_answer_is_that_of_all_tokens_though_the_last_block_computes_only_what_is_read():
    for how in ("token", "pair", "mean"):
        pruned, image = prune(made(replace(SMALL, pool=how)), 0.5), pictures()
        assert_close(pruned(image), pruned.read(pruned.encode(image)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("by", ["predictor", "attention", "random"])
@torch.no_grad()
def test_the_order_of_a_batch_does_not_matter(by):
    pruned, image = prune(made(), 0.5, (1, 2), by), pictures(4)
    assert_close(pruned(image.flip(0)), pruned(image).flip(0))
    assert_close(pruned(image[:1]), pruned(image)[:1])


@torch.no_grad()
def test_the_share_is_counted_from_all_patches_and_the_class_token_stays():
    pruned, image = prune(made(replace(SMALL, registers=2)), 0.7, (1, 2, 3)), pictures(2, 32, 32)
    walk, z = pruned.walk(image), pruned.embed(image)
    counts = []
    for index in range(4):
        z = walk.before(index, z)
        counts.append(z.shape[1])
    assert counts == [67, 3 + 44, 3 + 31, 3 + 21]
    assert (walk.kept[:, :3] == torch.arange(3)).all()
    assert (walk.kept.diff(dim=1) > 0).all()
    assert pruned.plan.count(2, 196) == 67


@torch.no_grad()
def test_random_dropping_follows_its_seed_and_class_attention_keeps_what_is_looked_at():
    vit, image = made(), pictures()
    same = [prune(vit, 0.5, (1,), "random", seed)(image) for seed in (1, 1, 2)]
    assert torch.equal(same[0], same[1])
    assert not torch.equal(same[0], same[2])
    pruned = prune(vit, 0.25, (1,), "attention")
    walk = pruned.walk(image)
    run(pruned, walk, pruned.embed(image))
    block, z = vit.blocks[0], vit.embed(image)
    q, k, _ = block.attention.split(block.norm1(z))
    p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)[:, :, 0, 1:].mean(1)
    best = p.topk(12).indices.sort().values
    assert torch.equal(walk.kept[:, 1:] - 1, best)


def test_decisions_are_zero_or_one_have_gradients_and_never_return():
    pruned, image = prune(made(), 0.6, (1, 2)).train(), pictures(4)
    out = pruned.masked(image)
    first, second = out.decisions
    assert set(first.unique().round(decimals=5).tolist()) <= {0.0, 1.0}
    assert (second <= first + 1e-6).all()
    loss = ratio_loss(out.decisions, pruned.plan.ratios) + out.logits.square().mean()
    loss.backward()
    for predictor in pruned.predictors:
        assert all(p.grad.abs().sum() > 0 and p.grad.isfinite().all() for p in predictor.parameters())


def test_a_picture_whose_patches_are_all_dropped_still_has_an_answer():
    for how in pool.KINDS:
        pruned, image = prune(made(replace(SMALL, pool=how)), 0.5, (1,)).train(), pictures()
        none = torch.zeros(3, 48, requires_grad=True)
        out = pruned.masked(image, [none])
        out.logits.sum().backward()
        assert out.logits.isfinite().all()
        assert none.grad.isfinite().all()


def test_predictors_learn_to_keep_the_share_that_is_wanted():
    torch.manual_seed(1)
    pruned, image = prune(made(), 0.5, (1,)).train(), pictures(16)
    optimiser = torch.optim.Adam(pruned.predictors.parameters(), lr=0.02)
    with torch.no_grad():
        pruned.predictors[0].decide.bias.copy_(torch.tensor([4.0, 0.0]))
    for _ in range(40):
        out = pruned.masked(image)
        loss = ratio_loss(out.decisions, pruned.plan.ratios)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert abs(out.decisions[0].mean().item() - 0.5) < 0.1


def test_losses_vanish_for_a_perfect_student_and_look_only_at_kept_patches():
    a, kept = torch.randn(2, 5, 8), torch.tensor([[1.0, 0, 1, 1, 0], [0, 0, 0, 0, 1]])
    logits = torch.randn(2, 4)
    assert logits_loss(logits, logits).abs() < 1e-6
    assert logits_loss(logits, logits.flip(1)) > 0.01
    moved = a + (1 - kept)[..., None]
    assert tokens_loss(moved, a, kept) == 0
    assert_close(tokens_loss(a + 2, a, kept), torch.tensor(4.0))
    assert_close(ratio_loss([kept], [0.4]), torch.tensor(((0.6 - 0.4) ** 2 + (0.2 - 0.4) ** 2) / 2))


@pytest.mark.parametrize("width", [7, 24])
def test_a_predictor_of_any_width_averages_over_what_is_kept(width):
    predictor, z = Predictor(width).eval(), torch.randn(2, 9, width)
    kept = torch.ones(2, 9)
    kept[:, 4:] = 0
    assert predictor(z).shape == (2, 9, 2)
    assert_close(predictor(z, kept)[:, :4], predictor(z[:, :4]))
    assert_close(predictor(z, torch.ones(2, 9)), predictor(z))
    assert set(sample(predictor(z)).unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("config", [SMALL, HYBRID, replace(SMALL, position="relative")])
def test_a_pruned_model_is_a_folder_that_answers(config, tmp_path):
    vit, image = made(config), pictures()
    for by in ("predictor", "random"):
        pruned = prune(vit, 0.6, (1, 3), by, seed=3)
        save_folder(tmp_path / by, pruned, Preprocess(size=(32, 32)), [f"name {i}" for i in range(5)])
        back = load(tmp_path / by).module
        assert config_of(back) == pruned.plan
        with torch.no_grad():
            assert torch.equal(back(image), pruned(image))
    assert saccade.load(tmp_path / "random").predict(torch.zeros(40, 40, 3).byte().numpy())[0].score > 0
    assert from_json(to_json(pruned.plan), KINDS) == pruned.plan


def test_a_pruned_model_goes_to_other_pictures_and_classes():
    pruned = prune(made(), 0.5)
    larger = resize(pruned, (64, 48))
    assert isinstance(larger, Pruned)
    assert larger.plan == replace(pruned.plan, vit=replace(SMALL, image=(64, 48)))
    with torch.no_grad():
        assert larger(pictures(2, 64, 48)).shape == (2, 5)


def test_the_published_layout_loads_with_places_and_share_from_its_config_or_the_usual_ones(tmp_path):
    pruned = prune(made(replace(SMALL, width=64, heads=1)), 0.6, (1, 2, 3))
    save_folder(tmp_path / "a", pruned, Preprocess(size=(32, 32)), [], "dynamicvit")
    theirs = read_tensors(tmp_path / "a" / "model.safetensors")
    assert theirs["score_predictor.2.in_conv.1.weight"].shape == (64, 64)
    assert theirs["score_predictor.2.out_conv.4.weight"].shape == (2, 16)
    assert "blocks.0.attn.qkv.weight" in theirs
    image = pictures()
    back = load(tmp_path / "a")
    assert back.layout == "dynamicvit"
    assert back.module.plan == pruned.plan
    with torch.no_grad():
        assert torch.equal(back.module(image), pruned(image))
    write_safetensors(tmp_path / "bare.safetensors", theirs, None)
    assert load(tmp_path / "bare.safetensors").module.plan == replace(pruned.plan, keep=0.7)
    told = json.loads((tmp_path / "a" / "config.json").read_text())
    told["model_args"]["pruning_loc"] = [1]
    (tmp_path / "a" / "config.json").write_text(json.dumps(told))
    with pytest.raises(ModelError, match="3 predictors for 1 blocks"):
        load(tmp_path / "a")


def test_the_predictor_of_the_published_layout_is_computed_as_published():
    """LayerNorm (1e-5), Linear, GELU; local half and mean half side by side; three layers with GELUs."""
    predictor, z = Predictor(16), torch.randn(2, 6, 16)
    f = torch.nn.functional
    x = f.gelu(predictor.enter(f.layer_norm(z, (16,), predictor.norm.weight, predictor.norm.bias, 1e-5)))
    x = torch.cat([x[..., :8], x[..., 8:].mean(1, keepdim=True).expand(-1, 6, -1)], -1)
    x = predictor.decide(f.gelu(predictor.narrow(f.gelu(predictor.mix(x)))))
    assert_close(predictor(z), x)


@pytest.mark.parametrize("layout", ["timm", "hf", "google"])
def test_a_layout_whose_readers_would_not_prune_is_refused(layout, tmp_path):
    with pytest.raises(UsageError, match="would run a pruned model as a plain one; write it as saccade"):
        save_folder(tmp_path / "no", prune(made(), 0.5), Preprocess(size=(32, 32)), [], layout)
    with pytest.raises(UsageError, match="is for models with predictors"):
        save_folder(
            tmp_path / "no", prune(made(), 0.5, by="random"), Preprocess(size=(32, 32)), [], "dynamicvit"
        )
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep": 0.0}, "keep is 0; expected a share of the patches above 0 and at most 1"),
        ({"keep": 1.2}, "keep is 1.2; expected a share"),
        ({"places": (3, 1)}, r"places are \(3, 1\); expected increasing block numbers from 0 to 3"),
        ({"places": (4,)}, "expected increasing block numbers from 0 to 3"),
        ({"places": (0,), "by": "attention"}, "from 1 to 3"),
        ({"by": "atention"}, "by is 'atention', which is not known; did you mean 'attention'"),
    ],
)
def test_what_cannot_work_is_refused_in_words(changes, words):
    with pytest.raises(UsageError, match=words):
        PrunedConfig(**({"vit": SMALL, "keep": 0.7, "places": (1, 2)} | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep": 2.0}, "keep is 2; expected"),
        ({"keep": "much"}, "keep is 'much'"),
        ({"vit": {"kind": "resnet", "layers": [1], "bottleneck": False}}, "vit is ResNetConfig"),
        ({"vit": 3}, "the model's kind is None"),
        ({"kind": "shrunk"}, "the model's kind is 'shrunk'; expected one of vit, hybrid, resnet, pruned"),
    ],
)
def test_a_folder_that_describes_nonsense_is_refused(changes, words):
    with pytest.raises(ModelError, match=words):
        from_json(to_json(PrunedConfig(vit=SMALL, keep=0.7, places=(1,))) | changes, KINDS)


def test_usual_places_and_the_walk_that_changes_nothing():
    assert [usual_places(depth) for depth in (1, 2, 4, 6, 9, 12, 24)] == [
        (),
        (1,),
        (2,),
        (2, 4),
        (2, 4, 6),
        (3, 6, 9),
        (6, 12, 18),
    ]
    vit, image = made(), pictures()
    with torch.no_grad():
        assert torch.equal(run(vit, start(vit, image), vit.embed(image)), vit.encode(image))
