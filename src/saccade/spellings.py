"""The words of other tools, and what saccade calls the same thing: the one table of them."""

import re
from collections.abc import Collection, Sequence

from saccade.errors import did_you_mean

TRAIN = {
    "epochs": "budget.epochs",
    "batch": "budget.batch",
    "lr": "optim.lr",
    "seed": "seed",
    "device": "device",
    "image": "image",
    "minutes": "budget.minutes",
}
"""The options of `saccade train`, also arguments of saccade.train, and the recipe field that each sets."""


def _spread(rows: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return each of the words in a key with the words of its value."""
    return {word: tuple(value.split()) for key, value in rows.items() for word in key.split()}


OPTIONS = _spread(
    {
        "epoch num-epochs n-epochs nb-epochs max-epochs num-train-epochs ep": "--epochs",
        "batch-size batchsize bs bsz train-batch-size per-device-train-batch-size b": "--batch",
        "learning-rate learningrate lr0 base-lr initial-lr": "--lr",
        "random-seed manual-seed random-state": "--seed",
        "gpu gpus cuda accelerator no-cuda cpu": "--device",
        "imgsz img-size image-size imagesize img input-size resolution size crop-size": "--image",
        "workers num-workers dataloader-num-workers j": "--workers workers",
        "weight-decay wd": "optim.decay",
        "warmup warmup-epochs warmup-ratio warmup-steps": "budget.warmup",
        "max-steps num-steps iterations iters": "budget.steps",
        "gradient-accumulation-steps accumulate": "budget.accumulate",
        "patience early-stopping": "budget.patience",
        "half fp16 bf16 amp mixed-precision precision": "precision",
        "mixup": "mix.mixup",
        "cutmix": "mix.cutmix",
        "label-smoothing smoothing": "mix.smoothing",
        "drop-path stochastic-depth": "droppath",
        "val-split validation-split split-ratio test-size": "val",
        "time max-time time-limit": "--minutes",
        "cross-validation k-folds kfold n-splits cv": "--folds",
        "pretrained weights checkpoint ckpt model-name arch net backbone model": "--model MODEL",
        "output output-dir outdir out-dir save-dir save-path project name run-name dir": "--out",
        "cfg config yaml hyp hparams": "--recipe",
        "source input inputs images pictures img-path image-path path": "PICTURE DATA",
        "data dataset data-dir data-path root train-dir": "DATA --data",
        "format export-format target-format": "--to",
        "int8-calibration quantize quantise quant dynamic": "--int8",
        "topk top-k k num-classes": "--top",
        "cam gradcam attention": "--method",
        "class label": "--target",
        "save-json": "--json",
        "save-csv": "--csv",
        "max-new-tokens max-length max-tokens": "--tokens",
        "num-beams beam-size beam": "--beams",
        "temp": "--temperature",
    }
)
"""An option elsewhere, and what it may be here: an option, a recipe field or, in capitals, an argument."""
FIELDS = {
    **TRAIN,
    **{word: TRAIN[first.removeprefix("--")] for word, (first, *_) in OPTIONS.items()
       if first.removeprefix("--") in TRAIN},
    **{word: found[-1] for word, found in OPTIONS.items() if found[-1].islower() and found[-1][0] != "-"},
}  # fmt: skip
"""What else a recipe field is called."""
VERBS = _spread(
    {
        "val validate validation eval test score": "evaluate",
        "fit finetune fine-tune learn": "train",
        "resume continue": "train --resume",
        "probe linear-probe": "train --probe",
        "benchmark speed profile latency": "bench",
        "classify infer inference detect run label": "predict",
        "list ls zoo list-models architectures": "models",
        "download fetch get": "pull",
        "import": "convert",
        "visualize visualise attention gradcam cam heatmap interpret": "explain",
        "onnx openvino quantize quantise deploy": "export",
        "features extract search similar tsne umap": "embed",
        "analyze analyse clean dedupe duplicates lint": "check",
        "generate": "complete",
        "info env diagnose": "doctor",
        "compress speedup": "prune",
        "help": "--help",
        "version": "--version",
    }
)
"""A command elsewhere, and the one here."""
MODEL_WANTED = (
    "a run folder, a model folder, a file of weights or a hub id such as google/vit-base-patch16-224"
)
HUB_IDS = (
    *(
        f"google/vit-{size}-patch16-{end}"
        for size in ("base", "large")
        for end in ("224", "384", "224-in21k")
    ),
    *(f"google/vit-{end}" for end in ("base-patch32-384", "large-patch32-384", "huge-patch14-224-in21k")),
    *(f"facebook/deit-{size}-patch16-224" for size in ("tiny", "small", "base")),
    *(f"facebook/deit-{size}-distilled-patch16-224" for size in ("tiny", "small", "base")),
    *(f"facebook/dinov2-{size}" for size in ("small", "base", "large", "giant")),
    *("openai-community/gpt2", "google-bert/bert-base-uncased"),
)
"""Popular models of the hub, to recognise a misspelt one."""

SIZES = {
    "tiny": "ti", "t": "ti", "small": "s", "base": "b", "large": "l", "huge": "h", "giant": "g",
    "gigantic": "G", "bigg": "G",
}  # fmt: skip
_PATCHES = {"h": "14", "g": "14", "G": "14", "xs": "4", "mini": "16"}
_NETWORK = re.compile(
    r"(?:(?P<stem>r|r26|r50|conv)_)?(?P<kind>vit|deit)_?"
    r"(?P<size>xs|mini|ti|tiny|t|small|s|base|b|large|l|huge|h|gigantic|giant|bigg|g)"
    r"(?:_?(?:p|patch)?_?(?P<patch>\d{1,2})(?!\d))?(?:_(?P<side>\d{1,4}(?:x\d{1,4})?))?(?:_[a-z]\w*)?"
)
_TEXT = re.compile(r"gpt_(mini|small)|gpt2(_(medium|large|xl))?|bert_(mini|small|base|large)"
                   r"|transformer_(small|base|big)|seq2seq_(rnn|lstm|gru|attention|luong)")  # fmt: skip
_OTHERS = re.compile(r"vit|(swin|beit|convnext|efficient|mobile|resne|vgg|densenet|yolo|clip|cait|deit|regnet"
                     r"|inception|maxvit|eva|dino|mae|xcit|pvt|rtdetr|detr|sam)[\w.-]*")  # fmt: skip
_WEB = re.compile(r"(?:https?|ftp|s3|gs):/{1,2}", re.IGNORECASE)
_IMAGE = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif")


def architecture(word: str) -> str:
    """Return saccade's name for an architecture as timm, torchvision, papers or people write it; or ""."""
    if re.fullmatch(r"vit_[gG]\d+(_\d+)?", word) or _TEXT.fullmatch(word):
        return word
    plain = re.sub(r"[-/ .+]", "_", word.strip()).lower()
    if match := re.fullmatch(r"resnet_?(18|34|50)(_small)?(_w\d+)?(_\d+)?(?:_[a-z]\w*)?", plain):
        depth, *rest = match.groups(default="")
        return f"resnet{depth}{''.join(rest)}"
    kind = next((kind for kind in ("dinov2", "deit") if kind in plain), "")
    suffix = "_distilled" if "distilled" in plain else "_reg" if "_reg" in plain and kind == "dinov2" else ""
    plain = re.sub(r"_?(distilled|reg4?)(?=_|$)", "", plain)
    if kind == "dinov2":
        plain = re.sub(r"_dinov2|dinov2_?(?=vit)", "", plain).replace("dinov2", "vit")
    match = _NETWORK.fullmatch(plain)
    if match is None or (match["stem"] and match["kind"] != "vit"):
        return ""
    size = SIZES.get(match["size"], match["size"])
    patch = match["patch"] or ("14" if kind == "dinov2" else _PATCHES.get(size, "16"))
    stem = f"{match['stem']}_" if match["stem"] else ""
    usual = "518" if kind == "dinov2" else "224"
    side = "" if match["side"] in (None, usual) else f"_{match['side']}"
    return f"{stem}{kind or match['kind']}_{size}{patch}{suffix}{side}"


def is_url(word: str) -> bool:
    """Return whether this is a web address, also one that a path has robbed of a slash."""
    return _WEB.match(word) is not None


def why_no_model(word: str) -> str:
    """Return why a word that is not a path cannot be a model, and what to do; "" if unknown."""
    if is_url(word):
        page = re.fullmatch(r"https?:/{1,2}(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+)(?:/.*)?", word)
        advice = f"give its hub id, {page[1]}" if page else "download the file and give its path"
        return f"{word!r} is a web address; expected {MODEL_WANTED}; {advice}"
    if word.lower().endswith(_IMAGE):
        return f"{word!r} is the name of an image; the model comes first, the images after it"
    name = architecture(word)
    if not name and _OTHERS.fullmatch(word.lower()):
        return (
            f"{word!r} is not an architecture of saccade (`saccade models` lists them); give {MODEL_WANTED}"
        )
    if not name:
        return ""
    lists = "`saccade models --pretrained` lists published weights"
    trains = f"`saccade train DATA --model {name}` trains it"
    if name == word:
        return f"{name} is an architecture and has no weights; expected {MODEL_WANTED}; {trains}, {lists}"
    return f"no model found at {word!r}; saccade calls this architecture {name}; {trains}, {lists}"


def near_hub_id(word: str) -> str:
    """Return "; did you mean 'google/vit-base-patch16-224'?" for a misspelt hub id."""
    return "" if word in HUB_IDS else did_you_mean(word.lower(), HUB_IDS)


def option_hint(
    option: str, verb: str, options: Collection[str], arguments: Sequence[str], fields: Collection[str] = ()
) -> str:
    """Return what to write in place of an option that a command does not have.

    Args:
        arguments: The command's arguments in their order, in capitals.
        fields: The recipe fields that its --set changes.
    """
    word = option.lstrip("-").replace("_", "-").lower()
    exact = f"--{word}"
    wanted = (exact,) if exact in options or word in TRAIN else OPTIONS.get(word, ())
    for each in wanted:
        if each in options:
            return f"; `saccade {verb}` calls it {each}"
        if each in arguments:
            return f"; give {each} without an option: `saccade {verb} {' '.join(arguments)}`"
    for each in (*wanted, word.replace("-", "_")):
        if field := next((name for name in fields if each in (name, name.rpartition(".")[2])), ""):
            return f"; it is a recipe field: --set {field}=VALUE"
        if each.removeprefix("--") in TRAIN:
            return f"; `saccade {verb}` has none (`saccade train` has {each})"
    near = did_you_mean(option, [each for each in options if each != "--help"], show=str)
    if near or verb != "train":
        return near
    return "; other settings are recipe fields: --set NAME=VALUE, and --show-recipe lists them"


def verb_hint(word: str, rest: Sequence[str], verbs: Collection[str]) -> str:
    """Return the command to use in place of one that does not exist."""
    words = [word.rpartition("=")[2].lower(), *(each.rpartition("=")[2] for each in rest[:1])]
    if words[-1] in verbs and len(words) > 1:  # `yolo classify train`
        return f"; did you mean `saccade {words[-1]}`?"
    found = " ".join(VERBS.get(words[0], ()))
    return f"; did you mean `saccade {found}`?" if found else did_you_mean(word, verbs)


def assignments(verb: str, words: Sequence[str], options: Collection[str], arguments: Sequence[str]) -> str:
    """Return the command for words such as data=photos epochs=3; "" if there are none."""
    places: dict[str, str] = {}
    loose: list[str] = []
    found = False
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        key = name.replace("_", "-").lower()
        known = (f"--{key}", *OPTIONS.get(key, ()))
        if word[:1] == "-" or (i and words[i - 1][:1] == "-") or not equals or not name.isidentifier():
            loose.append(word)
        elif place := next((each for each in known if each in arguments and each not in places), ""):
            found, places[place] = True, value
        elif option := next((each for each in known if each in options), ""):
            found = True
            loose += [option, value]
        elif verb == "train" and key in FIELDS:
            found = True
            loose += ["--set", f"{FIELDS[key]}={value}"]
        else:
            loose.append(word)
    command = ["saccade", verb, *(places[each] for each in arguments if each in places), *loose]
    return " ".join(command) if found else ""
