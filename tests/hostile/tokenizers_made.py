"""tokenizer.json as the projects publish it, in small, and the rules that hostile ones are made of."""

from copy import deepcopy
from typing import Any

GPT2_RULE = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_RULE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz.,!<>' 0123456789"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def added(number: int, content: str, **changes: object) -> dict[str, Any]:
    """A mark."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **plain, "special": True, **changes}


def whole(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """All parts of a tokenizer.json."""
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return deepcopy({"version": "1.0", **empty, "added_tokens": [], "model": model, **parts})


def several(part: str, *rules: dict[str, Any]) -> dict[str, Any]:
    """Rules one after the other."""
    return {"type": "Sequence", part: list(rules)}


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    """A rule that exchanges letters."""
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern: str, kind: str = "Regex") -> dict[str, Any]:
    """A rule that cuts a text."""
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": "Isolated", "invert": False}


def template(*pieces: tuple[str, str]) -> list[dict[str, Any]]:
    """A frame around a text."""
    return [{kind: {"id": name, "type_id": 0}} for kind, name in pieces]


def _vocabulary(*first: str) -> dict[str, int]:
    return {word: number for number, word in enumerate(dict.fromkeys((*first, *LETTERS)))}


PAIRS = _vocabulary("<|endoftext|>", "\u0120", "t", "h", "e", "th", "the", "\u0120the")
MERGES = ["t h", "th e", "\u0120 the"]
MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = _vocabulary(*MARKS, "the", "cat", "##s")
FRAME = {
    "type": "TemplateProcessing",
    "single": template(("SpecialToken", "[CLS]"), ("Sequence", "A"), ("SpecialToken", "[SEP]")),
    "pair": template(("SpecialToken", "[CLS]"), ("Sequence", "A"), ("Sequence", "B")),
    "special_tokens": {
        word: {"id": word, "ids": [WORDS[word]], "tokens": [word]} for word in ("[CLS]", "[SEP]")
    },
}
GPT2 = whole(
    {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
     "fuse_unk": False, "vocab": PAIRS, "merges": MERGES},
    added_tokens=[added(0, "<|endoftext|>", normalized=True)],
    pre_tokenizer={name: value for name, value in BYTES.items() if name != "use_regex"},
    post_processor=BYTES,
    decoder=BYTES,
)  # fmt: skip
"""As published in 2020: the model without a type, merges as text."""
BERT = whole(
    {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
     "max_input_chars_per_word": 100, "vocab": WORDS},
    added_tokens=[added(i, word) for i, word in enumerate(MARKS)],
    normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                "strip_accents": None, "lowercase": True},
    pre_tokenizer={"type": "BertPreTokenizer"},
    post_processor=FRAME,
    decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
)  # fmt: skip
SPACES = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2, written today": {
        **GPT2,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": PAIRS, "merges": [m.split(" ") for m in MERGES]},
    },
    "bert": BERT,
    "bert, published in 2020": {
        **BERT,
        "model": {name: value for name, value in BERT["model"].items() if name != "type"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    },
    "bert, saved after use": {
        **BERT,
        "truncation": {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
    },
    "roberta": {
        **GPT2,
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0],
                           "trim_offsets": True, "add_prefix_space": False},
    },
    "a code model": {
        **GPT2,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": several("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTES),
    },
    "a rule of its own": {
        **GPT2,
        "pre_tokenizer": several("pretokenizers", split(LLAMA_RULE), {**BYTES, "use_regex": False}),
        "post_processor": several("processors", BYTES),
    },
    "gpt-2's rule written out": {
        **GPT2,
        "pre_tokenizer": several("pretokenizers", split(GPT2_RULE), {**BYTES, "use_regex": False}),
    },
    "sentencepiece by the library": whole(
        {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
         "vocab": [["<unk>", 0.0], ["\u2581", -2.0], ["\u2581the", -3.5], *([c, -5] for c in LETTERS)]},
        added_tokens=[added(0, "<unk>")],
        normalizer=several("normalizers", {"type": "Nmt"}, {"type": "NFKC"}, replace(" {2,}", " ", "Regex"),
                           replace("``", '"')),
        pre_tokenizer=SPACES,
        decoder=SPACES,
    ),
    "llama's spaces": whole(
        {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
         "continuing_subword_prefix": None, "end_of_word_suffix": None, "ignore_merges": False,
         "vocab": _vocabulary("<unk>", "\u2581", "th"), "merges": ["t h"]},
        added_tokens=[added(0, "<unk>")],
        normalizer=several("normalizers", {"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")),
        decoder=several("decoders", replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                        {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    ),
    "words": whole(
        {"type": "WordLevel", "vocab": WORDS, "unk_token": "[UNK]"},
        normalizer=several("normalizers", {"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}),
        pre_tokenizer=several("pretokenizers", {"type": "Whitespace"},
                              {"type": "Punctuation", "behavior": "Isolated"}),
    ),
}  # fmt: skip
