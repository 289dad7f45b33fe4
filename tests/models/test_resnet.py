import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.testing import assert_close

from saccade.models.resnet import Basic, Bottleneck, ResNet, ResNetConfig


def config(layers=(1, 2, 1, 1), bottleneck=False, width=8, classes=10, **changes):
    return ResNetConfig(layers=layers, bottleneck=bottleneck, width=width, classes=classes, **changes)


def pictures(height=64, width=64, batch=2):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(0))


def awake(model):
    """Random values in every parameter and buffer, as after some training."""
    torch.manual_seed(0)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.ndim > 1:
            torch.nn.init.kaiming_normal_(tensor)
        elif tensor.is_floating_point():
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
    return model.eval()


def in_hugging_face(model):
    """The same weights in `transformers.ResNetForImageClassification`."""
    wide = 4 if model.config.bottleneck else 1
    width = model.config.width
    other = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=width,
            hidden_sizes=[wide * width * 2**s for s in range(len(model.config.layers))],
            depths=list(model.config.layers),
            layer_type="bottleneck" if model.config.bottleneck else "basic",
            downsample_in_bottleneck=False,
            num_labels=model.config.classes,
        )
    ).eval()
    embedder = other.resnet.embedder.embedder
    pairs = [(embedder.convolution, model.root), (embedder.normalization, model.norm)]
    for theirs, stage in zip(other.resnet.encoder.stages, model.stages, strict=True):
        for block, unit in zip(theirs.layers, stage, strict=True):
            for i, layer in enumerate(block.layer, start=1):
                pairs.append((layer.convolution, getattr(unit, f"conv{i}")))
                pairs.append((layer.normalization, getattr(unit, f"norm{i}")))
            if isinstance(unit.project, torch.nn.Conv2d):
                pairs.append((block.shortcut.convolution, unit.project))
                pairs.append((block.shortcut.normalization, unit.norm_project))
    pairs.append((other.classifier[1], model.head))
    for theirs, own in pairs:
        theirs.load_state_dict(own.state_dict())
    assert sum(p.numel() for p in other.parameters()) == sum(p.numel() for p in model.parameters())
    return other


@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("size", [(224, 224), (97, 64)])
def test_logits_equal_those_of_hugging_face(bottleneck, size):
    model = awake(ResNet(config(bottleneck=bottleneck)))
    x = pictures(*size)
    with torch.no_grad():
        logits, expected = model(x), in_hugging_face(model)(x).logits
    assert expected.std() > 0.1
    assert_close(logits, expected, atol=1e-4, rtol=1e-5)


PUBLISHED = {  # layers, bottleneck, parameters with 1000 classes
    "18": ((2, 2, 2, 2), False, 11_689_512),
    "34": ((3, 4, 6, 3), False, 21_797_672),
    "50": ((3, 4, 6, 3), True, 25_557_032),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_has_as_many_parameters_as_published(name):
    layers, bottleneck, count = PUBLISHED[name]
    with torch.device("meta"):
        model = ResNet(ResNetConfig(layers=layers, bottleneck=bottleneck))
    assert sum(p.numel() for p in model.parameters()) == count


def test_a_small_root_keeps_the_size_of_the_picture():
    small, usual = (ResNet(config((1, 1), small=s)).encode(pictures(32, 32)) for s in (True, False))
    assert small.shape == (2, 16, 16, 16)
    assert usual.shape == (2, 16, 4, 4)


@pytest.mark.parametrize("size", [(64, 64), (33, 70)])
def test_any_size_runs(size):
    assert ResNet(config()).eval()(pictures(*size)).shape == (2, 10)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_the_first_loss_is_the_logarithm_of_the_classes(bottleneck):
    loss = F.cross_entropy(ResNet(config(bottleneck=bottleneck))(pictures()), torch.tensor([3, 7]))
    assert loss.item() == pytest.approx(math.log(10), abs=1e-6)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_units_start_as_their_residual_path(bottleneck):
    unit = ResNet(config((2,), bottleneck)).stages[0][1]
    assert isinstance(unit, Bottleneck if bottleneck else Basic)
    x = torch.rand(2, 32 if bottleneck else 8, 4, 4)
    assert_close(unit(x), x)


def test_forward_is_embed_then_read_of_the_features():
    model, x = awake(ResNet(config())), pictures()
    z = model.encode(x)
    assert model.features(z).shape == (2, 64)
    assert torch.equal(model.head(model.features(z)), model(x))
    assert torch.equal(model.read(z), model(x))


def test_without_classes_it_answers_with_its_features():
    model, x = ResNet(config(classes=0)).eval(), pictures()
    assert torch.equal(model(x), model.features(model.encode(x)))


def test_batch_order_does_not_matter():
    model, x = awake(ResNet(config())), pictures(batch=3)
    assert_close(model(x.flip(0)), model(x).flip(0), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(model(x)[0], model(x)[1], atol=1e-3)


def test_eval_is_deterministic():
    model = awake(ResNet(config()))
    assert torch.equal(model(pictures()), model(pictures()))


@pytest.mark.parametrize("bottleneck", [False, True])
def test_two_pictures_can_be_learnt_by_heart(bottleneck):
    torch.manual_seed(0)
    model = ResNet(config((1, 1), bottleneck, small=True))
    x, y = pictures(16, 16), torch.tensor([3, 7])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for _ in range(25):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_a_resnet_without_stages_is_refused_in_words():
    with pytest.raises(ValueError, match="the number of stages in layers is 0; expected a number from 1"):
        config(())
