"""Google's ViT and hybrid in plain NumPy, from the papers' equations: what a loader of `.npz` must equal.

It knows nothing of saccade. Arrays carry the names and layouts of Google's published files (kernels are
height, width, in, out), pictures are batch, height, width, channels, and all sums are in float64.

    logits = google_logits(random_google(image=32, patch=8, classes=10), pictures)
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Arrays = dict[str, np.ndarray]


def layer_norm(z: np.ndarray, scale: np.ndarray, bias: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    mean, var = z.mean(-1, keepdims=True), z.var(-1, keepdims=True)
    return (z - mean) / np.sqrt(var + eps) * scale + bias


def gelu(x: np.ndarray) -> np.ndarray:
    """Hendrycks and Gimpel 2016, the tanh form."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(z: np.ndarray, a: Arrays, name: str, asks: np.ndarray | None = None) -> np.ndarray:
    """softmax(q k^T / sqrt(width of a head)) v, head by head; `asks` instead of z looks at z."""
    q, k, v = (
        np.einsum("bnd,dhe->bhne", y, a[f"{name}/{x}/kernel"]) + a[f"{name}/{x}/bias"][:, None]
        for x, y in (("query", z if asks is None else asks), ("key", z), ("value", z))
    )
    p = softmax(np.einsum("bhne,bhme->bhnm", q, k) / np.sqrt(q.shape[-1]))
    heads = np.einsum("bhnm,bhme->bhne", p, v)
    return np.einsum("bhne,hed->bnd", heads, a[f"{name}/out/kernel"]) + a[f"{name}/out/bias"]


def map_head(z: np.ndarray, a: Arrays) -> np.ndarray:
    """Zhai et al. 2022: a learnt probe looks at all tokens, then an MLP beside a residual path."""
    probe = np.repeat(a["MAPHead_0/probe"], z.shape[0], axis=0)
    x = attention(z, a, "MAPHead_0/MultiHeadDotProductAttention_0", probe)
    y = layer_norm(x, a["MAPHead_0/LayerNorm_0/scale"], a["MAPHead_0/LayerNorm_0/bias"])
    y = dense(gelu(dense(y, a, "MAPHead_0/MlpBlock_0/Dense_0")), a, "MAPHead_0/MlpBlock_0/Dense_1")
    return (x + y)[:, 0]


def dense(z: np.ndarray, a: Arrays, name: str) -> np.ndarray:
    return z @ a[f"{name}/kernel"] + a[f"{name}/bias"]


def windows(x: np.ndarray, kernel: int, stride: int, fill: float) -> np.ndarray:
    """All windows under TensorFlow's padding SAME: batch, rows, columns, channels, kernel, kernel."""
    border = [(0, 0)]
    for side in x.shape[1:3]:
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        border.append((total // 2, total - total // 2))
    x = np.pad(x, [*border, (0, 0)], constant_values=fill)
    return sliding_window_view(x, (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]


def conv(x: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    return np.tensordot(windows(x, kernel.shape[0], stride, 0.0), kernel, ((4, 5, 3), (0, 1, 2)))


def std_conv(x: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    """Qiao et al. 2019: each output channel's kernel has mean 0 and deviation 1."""
    kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
    return conv(x, kernel, stride)


def group_norm(x: np.ndarray, a: Arrays, name: str, groups: int = 32, eps: float = 1e-6) -> np.ndarray:
    """Wu and He 2018: one mean and deviation for each picture and group of neighbouring channels."""
    split = x.reshape(*x.shape[:3], groups, -1)
    mean, var = split.mean((1, 2, 4), keepdims=True), split.var((1, 2, 4), keepdims=True)
    normal = ((split - mean) / np.sqrt(var + eps)).reshape(x.shape)
    return normal * a[f"{name}/scale"].reshape(-1) + a[f"{name}/bias"].reshape(-1)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def unit(x: np.ndarray, a: Arrays, name: str, stride: int) -> np.ndarray:
    """A bottleneck of He et al. 2016, with its stride on the 3x3 convolution."""
    y = relu(group_norm(std_conv(x, a[f"{name}/conv1/kernel"]), a, f"{name}/gn1"))
    y = relu(group_norm(std_conv(y, a[f"{name}/conv2/kernel"], stride), a, f"{name}/gn2"))
    y = group_norm(std_conv(y, a[f"{name}/conv3/kernel"]), a, f"{name}/gn3")
    if f"{name}/conv_proj/kernel" in a:
        x = group_norm(std_conv(x, a[f"{name}/conv_proj/kernel"], stride), a, f"{name}/gn_proj")
    return relu(x + y)


def stem(x: np.ndarray, a: Arrays) -> np.ndarray:
    """The ResNet of a hybrid: root, max-pool, stages; the first stage has stride 1, the others 2."""
    x = relu(group_norm(std_conv(x, a["conv_root/kernel"], 2), a, "gn_root"))
    x = windows(x, 3, 2, -np.inf).max((-1, -2))
    for b in numbered(a, r"block(\d+)/"):
        for u in numbered(a, rf"block{b}/unit(\d+)/"):
            x = unit(x, a, f"block{b}/unit{u}", stride=2 if b > 1 and u == 1 else 1)
    return x


def numbered(a: Arrays, pattern: str) -> list[int]:
    """The numbers that names of this pattern carry, each once, in order."""
    return sorted({int(match[1]) for match in map(re.compile(pattern).match, a) if match})


def google_logits(arrays: Arrays, image: np.ndarray) -> np.ndarray:
    """Eq. 1 to 4 of Dosovitskiy et al. 2021; without a head, what the head would have read."""
    a = {name: array.astype(np.float64) for name, array in arrays.items()}
    x = image.astype(np.float64)
    if "conv_root/kernel" in a:
        x = stem(x, a)
    x = conv(x, a["embedding/kernel"], stride=a["embedding/kernel"].shape[0]) + a["embedding/bias"]
    z = x.reshape(x.shape[0], -1, x.shape[-1])
    if "cls" in a:
        z = np.concatenate([np.repeat(a["cls"], z.shape[0], axis=0), z], axis=1)
    z = z + a["Transformer/posembed_input/pos_embedding"]  # Eq. 1
    for i in numbered(a, r"Transformer/encoderblock_(\d+)/"):
        name = f"Transformer/encoderblock_{i}"
        y = layer_norm(z, a[f"{name}/LayerNorm_0/scale"], a[f"{name}/LayerNorm_0/bias"])
        z = z + attention(y, a, f"{name}/MultiHeadDotProductAttention_1")  # Eq. 2
        y = layer_norm(z, a[f"{name}/LayerNorm_2/scale"], a[f"{name}/LayerNorm_2/bias"])
        y = dense(gelu(dense(y, a, f"{name}/MlpBlock_3/Dense_0")), a, f"{name}/MlpBlock_3/Dense_1")
        z = z + y  # Eq. 3
    z = layer_norm(z, a["Transformer/encoder_norm/scale"], a["Transformer/encoder_norm/bias"])
    y = z[:, 0] if "cls" in a else map_head(z, a) if "MAPHead_0/probe" in a else z.mean(1)  # Eq. 4
    if "pre_logits/kernel" in a:
        y = np.tanh(dense(y, a, "pre_logits"))
    return dense(y, a, "head") if "head/kernel" in a else y


class Draw:
    """Random arrays by name, scaled so that what goes in with deviation 1 comes out with about the same."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.arrays: Arrays = {}

    def normal(self, name: str, *shape: int, std: float = 1.0, mean: float = 0.0) -> None:
        self.arrays[name] = (mean + std * self.random.standard_normal(shape)).astype(np.float32)

    def norm(self, name: str, *shape: int) -> None:
        self.normal(f"{name}/scale", *shape, std=0.1, mean=1.0)
        self.normal(f"{name}/bias", *shape, std=0.1)

    def layer(self, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        self.normal(f"{name}/kernel", *inputs, *outputs, std=np.prod(inputs) ** -0.5)
        self.normal(f"{name}/bias", *outputs, std=0.1)

    def std_conv(self, name: str, norm: str, kernel: int, channels: int, width: int) -> None:
        """Standardised kernels forget their mean and scale, so both are drawn away from 0 and 1."""
        self.normal(f"{name}/kernel", kernel, kernel, channels, width, std=0.05, mean=0.02)
        self.norm(norm, 1, 1, 1, width)


def _stem(draw: Draw, layers: tuple[int, ...], factor: float) -> int:
    """Draw the ResNet of a hybrid; return the channels that it ends with."""
    width = channels = int(64 * factor)
    draw.std_conv("conv_root", "gn_root", 7, 3, width)
    for b, inner, u in _units(layers, width):
        name = f"block{b}/unit{u}"
        if u == 1:
            draw.std_conv(f"{name}/conv_proj", f"{name}/gn_proj", 1, channels, 4 * inner)
        draw.std_conv(f"{name}/conv1", f"{name}/gn1", 1, channels, inner)
        draw.std_conv(f"{name}/conv2", f"{name}/gn2", 3, inner, inner)
        draw.std_conv(f"{name}/conv3", f"{name}/gn3", 1, inner, 4 * inner)
        channels = 4 * inner
    return channels


def _units(layers: tuple[int, ...], width: int) -> Iterator[tuple[int, int, int]]:
    for b, units in enumerate(layers):
        for u in range(units):
            yield b + 1, width * 2**b, u + 1


def random_google(
    *,
    image: int | tuple[int, int] = 32,
    patch: int = 8,
    width: int = 24,
    depth: int = 2,
    heads: int = 3,
    hidden: int = 48,
    classes: int = 10,
    prelogits: int = 0,
    token: bool = True,
    layers: tuple[int, ...] | None = None,
    factor: float = 1,
    seed: int = 0,
) -> Arrays:
    """A random model as Google would have published it; `layers` makes a hybrid, 0 classes leave no head.

    `patch` is what a token sees, in pixels of the picture, for hybrids too.
    """
    draw = Draw(seed)
    rows, cols = (side // patch for side in (image if isinstance(image, tuple) else (image, image)))
    channels = 3
    if layers is not None:
        channels = _stem(draw, layers, factor)
        patch //= 4 * 2 ** max(0, len(layers) - 1)
    draw.layer("embedding", (patch, patch, channels), (width,))
    if token:
        draw.normal("cls", 1, 1, width, std=0.5)
    draw.normal("Transformer/posembed_input/pos_embedding", 1, token + rows * cols, width, std=0.5)
    for i in range(depth):
        name = f"Transformer/encoderblock_{i}"
        draw.norm(f"{name}/LayerNorm_0", width)
        for x in ("query", "key", "value"):
            draw.layer(f"{name}/MultiHeadDotProductAttention_1/{x}", (width,), (heads, width // heads))
        draw.layer(f"{name}/MultiHeadDotProductAttention_1/out", (heads, width // heads), (width,))
        draw.norm(f"{name}/LayerNorm_2", width)
        draw.layer(f"{name}/MlpBlock_3/Dense_0", (width,), (hidden,))
        draw.layer(f"{name}/MlpBlock_3/Dense_1", (hidden,), (width,))
    draw.norm("Transformer/encoder_norm", width)
    if prelogits:
        draw.layer("pre_logits", (width,), (prelogits,))
    if classes:
        draw.layer("head", (prelogits or width,), (classes,))
    return draw.arrays
