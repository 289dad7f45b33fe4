"""timm's VisionTransformer in plain torch: what a folder of timm's layout means to timm's own loader.

It knows nothing of saccade. `model_args` of config.json are those of timm 1.0's VisionTransformer, under its
defaults; a tensor that timm would not find or not use is an error, as in timm's strict loading.

    logits = timm_logits(tensors, config, images)
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DEFAULTS: dict[str, Any] = {
    "img_size": [224, 224], "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12,
    "mlp_ratio": 4.0,
    "init_values": None, "class_token": True, "no_embed_class": False, "reg_tokens": 0,
    "global_pool": "token", "fc_norm": None,
}  # fmt: skip


def _layer(z: Tensor, t: dict[str, Tensor], name: str) -> Tensor:
    return F.linear(z, t.pop(f"{name}.weight"), t.pop(f"{name}.bias"))


def _norm(z: Tensor, t: dict[str, Tensor], name: str) -> Tensor:
    return F.layer_norm(z, z.shape[-1:], t.pop(f"{name}.weight"), t.pop(f"{name}.bias"), 1e-6)


def _block(z: Tensor, t: dict[str, Tensor], name: str, heads: int, hidden: int, scaled: bool) -> Tensor:
    b, n, d = z.shape
    q, k, v = (
        _layer(_norm(z, t, f"{name}.norm1"), t, f"{name}.attn.qkv").view(b, n, 3, heads, d // heads).unbind(2)
    )
    p = torch.einsum("bqhe,bkhe->bhqk", q, k).mul((d // heads) ** -0.5).softmax(-1)
    y = _layer(torch.einsum("bhqk,bkhe->bqhe", p, v).reshape(b, n, d), t, f"{name}.attn.proj")
    z = z + (y * t.pop(f"{name}.ls1.gamma") if scaled else y)
    assert t[f"{name}.mlp.fc1.weight"].shape == (hidden, d)
    y = _layer(F.gelu(_layer(_norm(z, t, f"{name}.norm2"), t, f"{name}.mlp.fc1")), t, f"{name}.mlp.fc2")
    return z + (y * t.pop(f"{name}.ls2.gamma") if scaled else y)


def timm_logits(tensors: dict[str, Tensor], config: dict[str, Any], image: Tensor) -> Tensor:
    t, given = dict(tensors), config["model_args"]
    assert given.keys() <= DEFAULTS.keys(), given
    a = DEFAULTS | given
    distilled = "distilled" in config["architecture"]
    assert list(image.shape[-2:]) == a["img_size"]
    assert t["patch_embed.proj.weight"].shape == (a["embed_dim"], 3, a["patch_size"], a["patch_size"])
    z = F.conv2d(
        image, t.pop("patch_embed.proj.weight"), t.pop("patch_embed.proj.bias"), stride=a["patch_size"]
    )
    z = z.flatten(2).transpose(1, 2)
    front = [t.pop("cls_token")] if a["class_token"] else []
    if distilled:  # timm's distilled class knows no registers
        front.append(t.pop("dist_token"))
    elif a["reg_tokens"]:
        front.append(t.pop("reg_token"))
        assert front[-1].shape[1] == a["reg_tokens"]
    front = [token.expand(z.shape[0], -1, -1) for token in front]
    where = t.pop("pos_embed")
    z = torch.cat([*front, z + where], 1) if a["no_embed_class"] else torch.cat([*front, z], 1) + where
    for i in range(a["depth"]):
        hidden = int(a["embed_dim"] * a["mlp_ratio"])
        z = _block(z, t, f"blocks.{i}", a["num_heads"], hidden, a["init_values"] is not None)
    mean = a["global_pool"] == "avg"
    last = mean if a["fc_norm"] is None else a["fc_norm"]
    z = z if last else _norm(z, t, "norm")
    y = z[:, sum(token.shape[1] for token in front) :].mean(1) if mean else z[:, 0]
    y = _norm(y, t, "fc_norm") if last else y
    if distilled and config["num_classes"]:
        y = (_layer(y, t, "head") + _layer(z[:, 1], t, "head_dist")) / 2
    elif distilled:
        y = (y + z[:, 1]) / 2
    elif config["num_classes"]:
        y = _layer(y, t, "head")
    assert not t, f"timm has no place for {sorted(t)}"
    return y
