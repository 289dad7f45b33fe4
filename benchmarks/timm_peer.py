"""Parity with timm on shared random weights, in its own layout.

timm needs torchvision, so this has an environment of its own: `pip install --no-deps timm` and
`torchvision==0.28.0` beside saccade, then run this file.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

# torchvision's own operators do not load beside a CPU build of torch; timm needs none of them
_library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for _name in ("nms", "qnms"):
    _schema = f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    _library.define(_schema)  # type: ignore[no-untyped-call]

import timm  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from saccade.models.vit import ViT  # noqa: E402
from saccade.weights.load import load  # noqa: E402

__all__ = ["timm"]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("vit_tiny_patch16_224", {}),
    ("deit_tiny_distilled_patch16_224", {}),
    ("vit_small_patch14_dinov2", {"img_size": (140, 224)}),
    ("vit_small_patch14_reg4_dinov2", {"img_size": 224}),
    ("vit_base_patch16_224", {"depth": 2, "global_pool": "avg"}),
    ("vit_base_patch16_224", {"depth": 2, "class_token": False, "global_pool": "avg", "fc_norm": False}),
    ("vit_tiny_r_s16_p8_224", {}),
    ("vit_small_r26_s32_224", {}),
    ("vit_base_r50_s16_224", {"depth": 2}),
]


def main() -> None:
    for name, options in CASES:
        torch.manual_seed(0)
        theirs = timm.create_model(name, num_classes=7, **options).eval()
        with torch.no_grad():
            for p in theirs.parameters():
                p.copy_(torch.randn(p.shape) * (0.05 if p.ndim > 1 else 0.3))
        with tempfile.TemporaryDirectory() as folder:
            save_file(theirs.state_dict(), Path(folder) / "model.safetensors")
            told = {"model_args": options, "global_pool": options.get("global_pool", "token")}
            (Path(folder) / "config.json").write_text(json.dumps(told))
            ours = load(Path(folder)).module
        assert isinstance(ours, ViT)
        image = torch.randn(2, 3, *ours.config.image)
        with torch.inference_mode():
            far = (ours(image) - theirs(image)).abs().max().item()
        print(f"{name:34} {ours.config.pool:10} {options!s:70.70} largest difference {far:.1e}")
        assert far < 1e-4


if __name__ == "__main__":
    main()
