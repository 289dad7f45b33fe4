"""Logits equal Hugging Face's on shared random weights, in files that transformers wrote; and back."""

import json

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from saccade.data.image.preprocess import Preprocess
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.weights.load import load
from saccade.weights.save import save_folder

SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 224,
    "patch_size": 16,
    "num_labels": 7,
}
KINDS = {
    "vit": (hf.ViTForImageClassification, hf.ViTConfig(**SIZES, intermediate_size=96)),
    "vit with the tanh GELU": (
        hf.ViTForImageClassification,
        hf.ViTConfig(**SIZES, intermediate_size=96, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-3),
    ),
    "deit with teacher": (
        hf.DeiTForImageClassificationWithTeacher,
        hf.DeiTConfig(**SIZES, intermediate_size=96),
    ),
    "deit": (hf.DeiTForImageClassification, hf.DeiTConfig(**SIZES, intermediate_size=96)),
    "dinov2": (hf.Dinov2ForImageClassification, hf.Dinov2Config(**SIZES | {"patch_size": 14})),
    "dinov2 with registers": (
        hf.Dinov2WithRegistersForImageClassification,
        hf.Dinov2WithRegistersConfig(**SIZES | {"patch_size": 14}),
    ),
}


def randomise(module):
    """Random numbers everywhere: published initialisations have zeros that would hide a mistake."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers_at_its_own_size_and_at_a_non_square_one(kind, tmp_path):
    cls, config = KINDS[kind]
    theirs = randomise(cls(config))
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path).module
    patch = config.patch_size
    for height, width in ((224, 224), (patch * 9, patch * 20)):
        image = torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(1)) * 2 - 1
        extra = {} if kind.startswith("dinov2") else {"interpolate_pos_encoding": True}
        with torch.inference_mode():
            expected = theirs(image, **extra).logits
            assert expected.std() > 0.1
            assert_close(ours(image), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["vit", "deit with teacher", "dinov2", "dinov2 with registers"])
def test_what_we_write_transformers_reads_and_answers_alike(kind, tmp_path):
    cls, config = KINDS[kind]
    randomise(cls(config)).save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    save_folder(tmp_path / "ours", model.module, model.preprocess, [f"name {i}" for i in range(7)], "hf")
    back, told = cls.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert back.config.id2label[3] == "name 3"
    image = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        assert_close(back(image).logits, model.module(image), atol=1e-4, rtol=0)


def test_the_pooler_of_a_bare_vit_is_our_pre_logits(tmp_path):
    theirs = randomise(hf.ViTModel(hf.ViTConfig(**SIZES, intermediate_size=96)))
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path).module
    image = torch.rand(2, 3, 224, 224)
    with torch.inference_mode():
        expected = theirs(image)
        assert_close(ours(image), expected.pooler_output, atol=1e-4, rtol=0)
        assert_close(ours.norm(ours.encode(image)), expected.last_hidden_state, atol=1e-4, rtol=0)


def test_the_encoder_of_a_masked_autoencoder_loads_without_its_decoder(tmp_path):
    sizes = {k: v for k, v in SIZES.items() if k != "num_labels"}
    decoder = {"decoder_hidden_size": 16, "decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1}
    theirs = randomise(
        hf.ViTMAEForPreTraining(
            hf.ViTMAEConfig(
                **sizes, intermediate_size=96, mask_ratio=0.0, decoder_intermediate_size=16, **decoder
            )
        )
    )
    theirs.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert any(name.startswith("decoder.") for name in model.unused)
    image = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        hidden = theirs.vit(image, noise=torch.arange(196.0)[None]).last_hidden_state
        ours = model.module
        assert_close(ours.norm(ours.encode(image)), hidden, atol=1e-4, rtol=0)


def test_names_that_transformers_uses_in_memory_are_read_too(tmp_path):
    from safetensors.torch import save_file

    cls, config = KINDS["vit"]
    theirs = randomise(cls(config))
    save_file(dict(theirs.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    image = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        assert_close(load(tmp_path).module(image), theirs(image).logits, atol=1e-4, rtol=0)


def test_preprocessing_is_read_from_the_file_beside_the_weights(tmp_path):
    cls, config = KINDS["dinov2"]
    cls(config).save_pretrained(tmp_path)
    told = {
        "crop_size": {"height": 224, "width": 224},
        "do_center_crop": True,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "resample": 3,
        "size": {"shortest_edge": 256},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    found = load(tmp_path).preprocess
    assert found == Preprocess(
        size=(224, 224),
        fit="crop",
        crop=224 / 256,
        interpolation="bicubic",
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )


def test_preprocessing_survives_the_trip_to_their_layout_and_back(tmp_path):
    config = ViTConfig(width=48, depth=2, heads=4, hidden=96, classes=3, block=BlockStyle(eps=1e-12))
    for i, sent in enumerate(
        (Preprocess(fit="squash", crop=1.0, interpolation="bilinear"), Preprocess(crop=0.875))
    ):
        save_folder(tmp_path / str(i), build(config), sent, [], "hf")
        assert load(tmp_path / str(i)).preprocess == sent
