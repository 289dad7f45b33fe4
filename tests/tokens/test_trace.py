"""Every patch is traced to its token, or to none."""

import torch
from torch.testing import assert_close

from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.tokens.merge import merge
from saccade.tokens.prune import prune
from saccade.tokens.trace import whole
from saccade.tokens.walk import run, start

SMALL = ViTConfig(image=(32, 32), patch=4, width=24, depth=4, heads=2, hidden=48, registers=1)


def test_dropping_and_merging_in_any_order():
    trace = whole(2, 6)
    assert trace.sizes().tolist() == [[1] * 6] * 2
    kept = trace.kept(torch.tensor([[0, 2, 3, 5], [1, 2, 4, 5]]))
    assert kept.owner.tolist() == [[0, -1, 1, 2, -1, 3], [-1, 0, 1, -1, 2, 3]]
    joined = kept.moved(torch.tensor([[0, 0, 1, 1], [1, 0, 1, 1]]), 2)
    assert joined.owner.tolist() == [[0, -1, 0, 1, -1, 1], [-1, 1, 0, -1, 1, 1]]
    assert joined.sizes().tolist() == [[2, 2], [1, 3]]
    assert joined.matrix()[1].tolist() == [[0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 1]]
    values = torch.tensor([[2.0, 4.0], [1.0, 9.0]])
    assert joined.paint(values, -7.0).tolist() == [[2, -7, 2, 4, -7, 4], [-7, 9, 1, -7, 9, 9]]
    assert joined.share(values).tolist() == [[1, 0, 1, 2, 0, 2], [0, 3, 1, 0, 3, 3]]
    assert_close(joined.share(values).sum(1), values.sum(1))


@torch.no_grad()
def test_a_walk_knows_which_patches_its_tokens_came_from():
    """The tokens are sums of one-hot patches: what the walk moves is what the trace says."""
    vit = build(SMALL).eval()
    image = torch.randn(2, 3, 32, 24)
    for module in (prune(vit, 0.6, (1, 2, 3)), merge(vit, (4, 9, 0, 7))):
        walk, z = start(module, image), module.embed(image)
        run(module, walk, z)
        trace = walk.trace()
        known = torch.eye(50).expand(2, 50, 50)
        walk = start(module, image)
        for index, block in enumerate(module.blocks):
            z = walk.before(index, z)
            known = follow(walk, known, "kept", index)
            q, k, v = block.attention.split(block.norm1(z))
            z = walk.between(index, block.add1(z, block.attention.join(walk.attend(q, k, v))), q, k)
            known = follow(walk, known, "matches", index)
            z = block.add2(z, block.mlp(block.norm2(z)))
        expected = trace.matrix() / trace.sizes()[..., None]
        assert_close(known[:, 2:, 2:], expected)
        assert_close(known[:, :2, :2], torch.eye(2).expand(2, 2, 2))


def follow(walk, known, what, index):
    """The same moves on one-hot vectors, from what the walk has written down."""
    if what == "kept" and getattr(walk, "kept", None) is not None:
        return torch.eye(50)[walk.kept]
    if what == "matches" and hasattr(walk, "matches") and walk.rates[index]:
        order, target = walk.matches[-1]
        sizes = (known > 0).sum(-1)
        rows = []
        for b in range(2):
            left = order.shape[1] - target.shape[1]
            sums = [known[b, t] * sizes[b, t] for t in order[b, :left]]
            for source, to in zip(order[b, left:].tolist(), target[b].tolist(), strict=True):
                sums[to] = sums[to] + known[b, source] * sizes[b, source]
            rows.append(torch.stack([s / s.sum() for s in sums]))
        return torch.stack(rows)
    return known


@torch.no_grad()
def test_the_trace_agrees_with_the_sizes_of_a_merged_model():
    module, image = merge(build(SMALL).eval(), 6), torch.randn(3, 3, 32, 32)
    walk = module.walk(image)
    run(module, walk, module.embed(image))
    assert torch.equal(walk.trace().sizes(), walk.size[:, 2:])
    assert walk.trace().owner.min() >= 0
