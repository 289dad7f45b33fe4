"""Fields beside Hugging Face's weights that change the answer: honoured as in transformers, or refused."""

import json

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from mutations import mutated_json
from promise import command, fuzz, keeps_promise
from torch.testing import assert_close
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.weights.load import load
from saccade.weights.save import save_folder

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
CLASSES = {
    "vit": (hf.ViTForImageClassification, hf.ViTConfig, {"intermediate_size": 40}),
    "model": (hf.ViTModel, hf.ViTConfig, {"intermediate_size": 40}),
    "msn": (hf.ViTMSNForImageClassification, hf.ViTMSNConfig, {"intermediate_size": 40}),
    "deit": (hf.DeiTForImageClassification, hf.DeiTConfig, {"intermediate_size": 40}),
    "teacher": (hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig, {"intermediate_size": 40}),
    "dinov2": (hf.Dinov2ForImageClassification, hf.Dinov2Config, {"mlp_ratio": 2}),
    "registers": (
        hf.Dinov2WithRegistersForImageClassification, hf.Dinov2WithRegistersConfig, {"mlp_ratio": 2}
    ),
}  # fmt: skip


def saved(kind, folder, **built):
    """A random model as transformers writes it."""
    cls, config, sizes = CLASSES[kind]
    model = cls(config(**SIZES | sizes | {"num_labels": 3} | built)).eval()
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance) * 0.3)
    model.save_pretrained(folder)


def edited(folder, changes, name="config.json"):
    path = folder / name
    found = json.loads(path.read_text()) if path.exists() else {}
    found |= changes
    path.write_text(json.dumps({key: value for key, value in found.items() if value != "REMOVE"}))


@torch.inference_mode()
def by_transformers(kind, folder, image):
    answer = CLASSES[kind][0].from_pretrained(folder).eval()(image)
    return answer.logits if "logits" in answer else answer.pooler_output


HONOURED = [
    ("vit", {}, {"num_register_tokens": 3}),
    ("vit", {}, {"layer_norm_eps": 0.05}),
    ("vit", {}, {"layer_norm_eps": "REMOVE"}),
    ("msn", {}, {"layer_norm_eps": "REMOVE"}),
    ("vit", {}, {"num_attention_heads": "REMOVE"}),
    ("dinov2", {}, {"num_attention_heads": "REMOVE"}),
    *(("vit", {}, {"hidden_act": act}) for act in ("gelu_new", "gelu_fast", "gelu_python", "gelu_accurate")),
    ("vit", {"qkv_bias": False}, {}),
    ("dinov2", {"qkv_bias": False}, {}),
    ("vit", {}, {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}),
    ("vit", {}, {"problem_type": "single_label_classification"}),
    ("vit", {}, {"head_dim": 6}),
    ("vit", {}, {"encoder_stride": 4, "use_mask_token": True}),
    ("model", {"pooler_output_size": 10}, {}),
    ("dinov2", {}, {"apply_layernorm": False, "reshape_hidden_states": False, "layerscale_value": 7.0}),
    ("dinov2", {"use_mask_token": False}, {}),
    ("registers", {"num_register_tokens": 2}, {}),
    ("deit", {}, {"num_register_tokens": 5}),
    ("teacher", {}, {"architectures": ["DeiTModel"]}),
]


@pytest.mark.parametrize(("kind", "built", "changes"), HONOURED, ids=str)
def test_a_field_means_what_transformers_takes_it_for(kind, built, changes, tmp_path):
    saved(kind, tmp_path, **built)
    edited(tmp_path, changes)
    image = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.inference_mode():
        assert_close(
            load(tmp_path).module(image), by_transformers(kind, tmp_path, image), atol=1e-5, rtol=1e-5
        )


REFUSED = [
    ("vit", {}, {"qkv_bias": False}, "qkv_bias False; expected True"),
    ("vit", {}, {"hidden_act": "relu"}, "the activation 'relu'; expected one of gelu"),
    ("vit", {}, {"hidden_act": "quick_gelu"}, "the activation 'quick_gelu'"),
    ("vit", {}, {"head_dim": 12}, "head_dim 12; expected 6"),
    ("vit", {}, {"is_causal": True}, "is_causal True; expected False"),
    ("vit", {}, {"num_channels": 1}, "num_channels 1; expected 3"),
    ("vit", {}, {"pruned_heads": {"0": [1]}}, "pruned_heads .* expected {}"),
    ("vit", {}, {"quantization_config": {"bits": 8}}, "quantization_config .* expected None"),
    ("vit", {}, {"problem_type": "multi_label_classification"}, "problem_type 'multi_label_"),
    ("vit", {}, {"problem_type": "regression"}, "problem_type 'regression'"),
    ("model", {}, {"pooler_act": "relu"}, "pooler_act 'relu'; expected 'tanh'"),
    ("dinov2", {}, {"use_swiglu_ffn": True}, "use_swiglu_ffn True; expected False"),
    ("dinov2", {}, {"mlp_ratio": 3}, "mlp_ratio 3; expected 2"),
    ("registers", {}, {"num_register_tokens": 3}, "num_register_tokens 3; expected 4"),
    ("deit", {}, {"model_type": "vit"}, "model_type 'vit', whose class in transformers leaves out or misses"),
    ("vit", {}, {"model_type": "deit"}, "model_type 'deit', .*those of vit or vit_mae or vit_msn"),
    ("registers", {}, {"model_type": "dinov2"}, "model_type 'dinov2', .*those of dinov2_with_registers"),
    ("dinov2", {}, {"model_type": "vit"}, "model_type 'vit', .*those of dinov2"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "built", "changes", "words"), REFUSED, ids=str)
def test_a_field_that_would_change_the_answer_is_refused_in_words(kind, built, changes, words, tmp_path):
    saved(kind, tmp_path, **built)
    edited(tmp_path, changes)
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


def test_what_an_older_version_wrote_for_a_vit_with_a_register_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    saved("vit", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["vit.embeddings.register_tokens"] = torch.ones(1, 1, 24)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"model_type 'vit', .*those of no class"):
        load(tmp_path)


def test_a_deit_with_one_head_goes_there_and_back(tmp_path):
    saved("deit", tmp_path / "a")
    model = load(tmp_path / "a")
    save_folder(tmp_path / "b", model.module, model.preprocess, ["x", "y", "z"], "hf")
    described = json.loads((tmp_path / "b" / "config.json").read_text())
    assert described["architectures"] == ["DeiTForImageClassification"]
    assert "num_register_tokens" not in described
    image = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        expected = by_transformers("deit", tmp_path / "a", image)
        assert torch.equal(by_transformers("deit", tmp_path / "b", image), expected)


def test_convert_refuses_in_a_sentence_and_writes_nothing(tmp_path):
    config = ViTConfig(image=(32, 32), patch=8, width=24, depth=2, heads=4, hidden=40, classes=3, registers=4)
    save_folder(tmp_path / "a", build(config), Preprocess(size=(32, 32)), ["x", "y", "z"])
    done = command("convert", "a", "--to", "hf", "--out", "b", cwd=tmp_path, code=2)
    assert "has no registers; this model has 4" in done.err
    assert "write it as timm or saccade" in done.err
    assert not (tmp_path / "b").exists()


PROCESSORS = {"ViT": ViTImageProcessorPil, "DeiT": DeiTImageProcessorPil, "Bit": BitImageProcessorPil}
GOOD = [
    ("ViT", {"size": {"height": 32, "width": 32}}),
    ("ViT", {"size": 32}),
    ("ViT", {"size": 32, "crop_size": 24}),
    ("ViT", {"size": 40, "crop_size": 32, "do_center_crop": True}),
    ("ViT", {"size": 32, "resample": 3, "do_normalize": False}),
    (
        "ViT",
        {"size": 32, "resample": 1, "do_rescale": False, "image_mean": [120.0] * 3, "image_std": [60.0] * 3},
    ),
    ("ViT", {"size": 32, "rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}),
    ("ViT", {"size": 32, "rescale_factor": 1 / 128, "do_normalize": False}),
    ("DeiT", {"size": 36, "crop_size": 32}),
    ("DeiT", {"size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}}),
    ("DeiT", {"size": 32, "do_center_crop": False}),
    ("Bit", {"size": {"shortest_edge": 40}, "crop_size": 32}),
    ("Bit", {"size": 36, "crop_size": 32, "image_mean": [0.5] * 3}),
]


@pytest.mark.parametrize(("kind", "told"), GOOD, ids=str)
def test_images_are_prepared_as_transformers_prepares_them(kind, told, tmp_path):
    saved("vit", tmp_path)
    edited(tmp_path, {"image_processor_type": f"{kind}ImageProcessor", **told}, "preprocessor_config.json")
    image = np.random.default_rng(0).integers(0, 256, (60, 44, 3), dtype=np.uint8)
    theirs = PROCESSORS[kind](**told)(image, return_tensors="np")["pixel_values"][0]
    ours = load(tmp_path).preprocess(image)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=0.011 * float(np.abs(theirs).max()))


def test_an_old_file_of_a_deit_squashes_before_the_crop(tmp_path):
    saved("deit", tmp_path)
    told = {
        "feature_extractor_type": "DeiTFeatureExtractor",
        "size": 40,
        "crop_size": 32,
        "do_center_crop": True,
    }
    edited(tmp_path, told, "preprocessor_config.json")
    found = load(tmp_path).preprocess
    assert (found.fit, found.crop, found.interpolation) == ("squash+crop", 0.8, "bicubic")


BAD = [
    ({"do_resize": False}, "do_resize is false"),
    ({"do_pad": True}, "do_pad is True; expected false"),
    ({"do_flip_channel_order": True}, "do_flip_channel_order is True"),
    ({"size": {"shortest_edge": 32}}, "shortest_edge and a square crop"),
    ({"size": {"longest_edge": 32}}, "expected height and width"),
    ({"size": {"shortest_edge": 32, "longest_edge": 64}}, "expected height and width"),
    ({"size": 24, "crop_size": 32, "do_center_crop": True}, "crop_size is 32x32 of size 24x24; exp"),
    ({"resample": 5}, "resample is 5; expected 0 to 3"),
    ({"resample": "box"}, "resample is 'box'"),
    ({"rescale_factor": 0}, "rescale_factor is 0"),
    ({"image_std": [0, 1, 1]}, "std is"),
    ({"image_processor_type": "ConvNextImageProcessor"}, "its class is 'ConvNext'; expected"),
]  # fmt: skip


@pytest.mark.parametrize(("told", "words"), BAD, ids=str)
def test_preprocessing_that_is_not_done_here_is_refused_in_words(told, words, tmp_path):
    saved("vit", tmp_path)
    edited(tmp_path, {"size": 32, **told}, "preprocessor_config.json")
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("hf")
    saved("dinov2", place)
    told = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 40}, "crop_size": 32}
    edited(place, told | {"do_rescale": True, "rescale_factor": 1 / 255}, "preprocessor_config.json")
    return place


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_fuzz_what_stands_beside_hugging_faces_weights(name, folder):
    path = folder / name
    seed = json.loads(path.read_text())
    loads = []

    @fuzz
    @given(mutated_json(seed))
    def run(value):
        path.write_text(json.dumps(value))
        loads.append(keeps_promise(lambda: load(folder), folder))

    try:
        run()
    finally:
        path.write_text(json.dumps(seed))
    assert sum(refused is None for refused in loads) > len(loads) // 20
