"""Examine a third-party tokenizer.json before the `tokenizers` library sees it.

The library trusts the file: a regular expression may backtrack until it panics, and thirty rules that double
a letter exhaust the memory. So only known kinds with plain fields and bounded sizes pass, and the rules make
a text at most `GROWTH` times longer. The allow-list covers published GPT-2 and BERT tokenizers; Precompiled
is left out, as its table cannot be examined.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from saccade.errors import ModelError
from saccade.files.paths import Flaw
from saccade.files.strict_json import parse_json
from saccade.wording import printable

ENTRIES = 2**20
ADDED = 2**14
LETTERS = 4096
"""Characters of one entry: GPT-2's longest has 128, and published vocabularies go up to 1,024."""
RULES = 32
GROWTH = 100
"""How many times longer the rules may make a text."""
DEPTH = 4
FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # U+FDFA becomes 18 letters
GROWS = {"BertNormalizer": 4, "Lowercase": 2, "ByteLevel": 4, "Nmt": 1}

_ATOM = (
    r"(?:\\[sSdDwWnrt.?*+()|$^-]|\\[pP]\{\^?\w{1,30}\}|\.|[^\\^$.|?*+()\[\]{}]"
    r"|\[\^?(?:[^\[\]\\&^]|\\[sSdDwWnrt\]\[\\.-]|\\[pP]\{\w{1,30}\})+\])"
)
_RUN = rf"(?:{_ATOM}\?)?{_ATOM}{{1,9}}(?:\+|\{{[1-9]\d?(?:,\d{{0,2}})?\}})?"
LINEAR = re.compile(rf"(?:{_RUN}|\\s\+\(\?!\\S\))(?:\|(?:{_RUN}|\\s\+\(\?!\\S\)))*")
"""Alternatives of a few letters of which only the last repeats, as in GPT-2's: no backtracking."""
PUBLISHED = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
}
"""The expressions of Llama 3, Qwen 2 and BLOOM, which do not have that form."""


class Check(NamedTuple):
    """A test of a field's value, and a description of what it expects."""

    fits: Callable[[Any], bool]
    words: str


def _whole(low: int, high: int) -> Check:
    return Check(lambda v: type(v) is int and low <= v <= high, f"a whole number from {low:,} to {high:,}")


def _text(low: int, high: int) -> Check:
    return Check(
        lambda v: isinstance(v, str) and low <= len(v) <= high, f"text of {low:,} to {high:,} characters"
    )


def _word(*words: str) -> Check:
    return Check(lambda v: isinstance(v, str) and v in words, f"one of {', '.join(words)}")


def _maybe(check: Check) -> Check:
    return Check(lambda v: v is None or check.fits(v), f"{check.words}, or null")


def _is_pattern(value: Any) -> bool:
    match value:
        case {"String": str(letters)} if len(value) == 1:
            return 0 < len(letters) <= 100
        case {"Regex": str(rule)} if len(value) == 1:
            return rule in PUBLISHED or (0 < len(rule) <= 500 and LINEAR.fullmatch(rule) is not None)
    return False


FLAG = Check(lambda v: type(v) is bool, "true or false")
PATTERN = Check(_is_pattern, "plain text, or a regular expression that cannot backtrack, such as GPT-2's")
LETTER = _text(1, 1)
WORD = _text(1, LETTERS)
AFFIX = _maybe(_text(0, 16))
NUMBER = _whole(0, ENTRIES - 1)
MARK = Check(
    lambda v: isinstance(v, list) and len(v) == 2 and WORD.fits(v[0]) and NUMBER.fits(v[1]),
    "a token and its id",
)
HOW = _word("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
BYTES = {"add_prefix_space": FLAG, "trim_offsets": FLAG, "use_regex": FLAG}
SPACES = {"replacement": LETTER, "add_prefix_space": FLAG, "split": FLAG, "str_rep": LETTER,
          "prepend_scheme": _word("always", "first", "never")}  # fmt: skip
REPLACE = {"pattern": PATTERN, "content": _text(0, 100)}
TABLE = Check(lambda v: isinstance(v, list | dict), "a list or an object")  # examined separately

PARTS: dict[str, dict[str, dict[str, Check]]] = {
    "normalizer": {
        "BertNormalizer": {"clean_text": FLAG, "handle_chinese_chars": FLAG, "strip_accents": _maybe(FLAG),
                           "lowercase": FLAG},
        "Strip": {"strip_left": FLAG, "strip_right": FLAG}, "Prepend": {"prepend": _text(0, 16)},
        "Replace": REPLACE, "NFC": {}, "NFD": {}, "NFKC": {}, "NFKD": {}, "Lowercase": {}, "StripAccents": {},
        "Nmt": {}, "ByteLevel": {},
    },
    "pre_tokenizer": {
        "BertPreTokenizer": {}, "ByteLevel": BYTES, "CharDelimiterSplit": {"delimiter": LETTER},
        "Digits": {"individual_digits": FLAG}, "FixedLength": {"length": _whole(1, 1000)},
        "Metaspace": SPACES, "Punctuation": {"behavior": HOW}, "UnicodeScripts": {}, "Whitespace": {},
        "Split": {"pattern": PATTERN, "behavior": HOW, "invert": FLAG}, "WhitespaceSplit": {},
    },
    "post_processor": {
        "BertProcessing": {"sep": MARK, "cls": MARK}, "ByteLevel": BYTES,
        "RobertaProcessing": {"sep": MARK, "cls": MARK, "trim_offsets": FLAG, "add_prefix_space": FLAG},
        "TemplateProcessing": {"single": TABLE, "pair": TABLE, "special_tokens": TABLE},
    },
    "decoder": {
        "BPEDecoder": {"suffix": _text(1, 16)}, "ByteFallback": {}, "ByteLevel": BYTES, "Fuse": {},
        "Metaspace": SPACES, "Replace": REPLACE, "WordPiece": {"prefix": _text(0, 16), "cleanup": FLAG},
        "Strip": {"content": LETTER, "start": _whole(0, 16), "stop": _whole(0, 0)},  # it panics at 1
    },
}  # fmt: skip
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
         "decoder": "decoders"}  # fmt: skip
NO_CHANCE = Check(lambda v: v is None or v == 0, "null: a text must always give the same ids")
PIECES = {"unk_token": WORD, "continuing_subword_prefix": _text(0, 16),
          "max_input_chars_per_word": _whole(1, 1000), "vocab": TABLE}  # fmt: skip
MODELS: dict[str, dict[str, Check]] = {
    "BPE": {"dropout": NO_CHANCE, "unk_token": _maybe(_text(0, LETTERS)), "continuing_subword_prefix": AFFIX,
            "end_of_word_suffix": AFFIX, "fuse_unk": FLAG, "byte_fallback": FLAG, "ignore_merges": FLAG,
            "vocab": TABLE, "merges": TABLE},
    "WordPiece": PIECES,
    "WordLevel": {"vocab": TABLE, "unk_token": WORD},
    "Unigram": {"unk_id": NUMBER, "vocab": TABLE, "byte_fallback": FLAG},
}  # fmt: skip
MARKED = {"id": NUMBER, "content": WORD, "single_word": FLAG, "lstrip": FLAG, "rstrip": FLAG,
          "normalized": FLAG, "special": FLAG}  # fmt: skip
TOP = ("version", "truncation", "padding", "added_tokens", *PARTS, "model")


def examine(data: bytes) -> str:
    """Return the text to give to the library; raise ModelError unless everything in it is known and small."""
    try:
        found = parse_json(data)
    except Flaw as flaw:
        raise ModelError(f"tokenizer.json {flaw.found}; {flaw.remedy}") from flaw
    for name in found:
        if name not in TOP:
            raise _refusal(f"has an entry {_quoted(name)}", f"{', '.join(TOP)}")
    model = found.get("model")
    if not isinstance(model, dict):
        raise _refusal("has no model", "an object with its vocabulary")
    # Old files leave out the type; padding and truncation are not the tokenizer's job here.
    changes: dict[str, Any] = {
        name: None for name in ("truncation", "padding") if found.get(name) is not None
    }
    if "type" not in model:
        changes["model"] = model = {"type": _type(model), **model}
    parts = {part: _flat(part, found.get(part)) for part in PARTS}
    check_model(model, bytewise="ByteLevel" in _kinds(parts["normalizer"] + parts["pre_tokenizer"]))
    _check_growth("normalizers", parts["normalizer"])
    _check_growth("decoders", parts["decoder"])
    for kind in ("ByteLevel", "Metaspace"):  # each adds letters to every token
        if _kinds(parts["pre_tokenizer"]).count(kind) > 1:
            raise _refusal(f"has the pre_tokenizer {kind} more than once", "it once")
    for processor in parts["post_processor"]:
        if processor["type"] == "TemplateProcessing":
            _check_template(processor)
    _check_added(found.get("added_tokens", []))
    return json.dumps({**found, **changes}) if changes else data.decode()


def _refusal(found: str, expected: str) -> ModelError:
    return ModelError(
        f"the tokenizer {found}; expected {expected}; use another model's, or correct tokenizer.json"
    )


def _quoted(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False), 60)


def _kinds(rules: Iterable[Mapping[str, Any]]) -> list[str]:
    return [rule["type"] for rule in rules]


def _type(model: Mapping[str, Any]) -> str:
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _check_fields(what: str, found: Mapping[str, Any], fields: Mapping[str, Check]) -> None:
    for name, value in found.items():
        if name == "type":
            continue
        if name not in fields:
            raise _refusal(f"has a {what} with {_quoted(name)}", ", ".join(fields) or "no field but its type")
        if not fields[name].fits(value):
            raise _refusal(f"has a {what} with {name} {_quoted(value)}", fields[name].words)


def _flat(part: str, value: Any, depth: int = 0) -> list[dict[str, Any]]:
    """Return all rules of a part in order, each of a known kind with known fields."""
    if value is None:
        return []
    kind = value.get("type") if isinstance(value, dict) else None
    inner = value.get(LISTS[part]) if kind == "Sequence" else None
    if isinstance(inner, list) and value.keys() == {"type", LISTS[part]}:
        if depth >= DEPTH or len(inner) > RULES:
            raise _refusal(f"nests {part}s {depth + 1} deep, {len(inner):,} in one", f"{DEPTH} and {RULES}")
        rules = [rule for item in inner for rule in _flat(part, item, depth + 1)]
        if len(rules) > RULES:
            raise _refusal(f"has {len(rules):,} {part}s", f"at most {RULES}")
        return rules
    known = PARTS[part]
    if not isinstance(kind, str) or kind not in known:
        raise _refusal(f"has the {part} {_quoted(kind)}", f"one of {', '.join(known)}, Sequence")
    _check_fields(f"{part} {kind}", value, known[kind])
    return [value]


def _check_growth(what: str, rules: Iterable[Mapping[str, Any]]) -> None:
    growth, known = 1.0, 1
    for rule in rules:
        kind = rule["type"]
        if kind in FORMS:  # a text decomposed once stays so until a Replace inserts other letters
            growth, known = growth * max(1, FORMS[kind] / known), max(known, FORMS[kind])
        elif kind == "Replace":
            least = len(rule.get("pattern", {}).get("String", " "))
            growth, known = growth * max(1, len(rule.get("content", "")) / least), 1
        elif what == "normalizers":
            growth *= GROWS.get(kind, 1) + len(rule.get("prepend", ""))
    if growth > GROWTH:
        raise _refusal(f"has {what} that make a text {growth:,.0f} times longer", f"at most {GROWTH} times")


def _check_template(found: Mapping[str, Any]) -> None:
    marks = found.get("special_tokens")
    if not isinstance(marks, dict) or len(marks) > RULES or not all(map(_is_mark, marks, marks.values())):
        raise _refusal("has a template with malformed special_tokens", "tokens, each with a few ids")
    for name, orders in (("single", [["A"]]), ("pair", [["A", "B"], []])):
        pieces = found.get(name)
        if not isinstance(pieces, list) or len(pieces) > RULES:
            raise _refusal(f"has a template {name} of {_quoted(pieces)}", f"a list of at most {RULES} pieces")
        texts = [_text_of(piece, marks) for piece in pieces]
        if sorted(filter(None, texts)) not in orders:
            raise _refusal(f"has a template {name} of other texts", f"{' and '.join(orders[0])}, each once")


def _is_mark(name: str, found: Any) -> bool:
    match found:
        case {"id": str(), "ids": [*numbers], "tokens": [*words]} if len(found) == 3:
            texts = all(WORD.fits(word) for word in words)
            return len(numbers) == len(words) <= RULES and texts and all(map(NUMBER.fits, numbers))
    return False


def _text_of(piece: Any, marks: Mapping[str, Any]) -> str:
    """Return which text a template's piece stands for, A or B; nothing for a special token."""
    kind, value = next(iter(piece.items())) if isinstance(piece, dict) and len(piece) == 1 else ("", {})
    match value:
        case {"id": str(name), "type_id": int(segment)} if len(value) == 2 and 0 <= segment <= RULES:
            if kind == "Sequence":
                return name
            if kind == "SpecialToken" and name in marks:
                return ""
    raise _refusal(f"has a template with {_quoted(piece)}", "a Sequence or a known SpecialToken")


def _check_added(found: Any) -> None:
    if not isinstance(found, list) or len(found) > ADDED:
        held = (
            f"{len(found):,} added_tokens" if isinstance(found, list) else "added_tokens that are not a list"
        )
        raise _refusal(f"has {held}", f"at most {ADDED:,}")
    for token in found:
        if not isinstance(token, dict):
            raise _refusal(f"has the added token {_quoted(token)}", "an object")
        _check_fields("added token", token, MARKED)


def check_model(model: Mapping[str, Any], *, bytewise: bool) -> None:
    """Refuse a model whose vocabulary, merges or settings the library cannot handle."""
    kind = model.get("type")
    if not isinstance(kind, str) or kind not in MODELS:
        raise _refusal(f"has the model {_quoted(kind)}", f"one of {', '.join(MODELS)}")
    _check_fields(f"model {kind}", model, MODELS[kind])
    vocabulary = model.get("vocab")
    if kind == "Unigram":
        _check_scores(vocabulary, model.get("unk_id"))
        return
    if not isinstance(vocabulary, dict) or not 0 < len(vocabulary) <= ENTRIES:
        raise _refusal("has no vocabulary of a sensible size", f"1 to {ENTRIES:,} entries with their numbers")
    numbers = set(vocabulary.values()) if all(type(n) is int for n in vocabulary.values()) else {-1}
    if not 0 <= min(numbers) <= max(numbers) < ENTRIES or len(numbers) < len(vocabulary):
        raise _refusal("has unusable ids", f"different whole numbers from 0 to {ENTRIES - 1:,}")
    if max(map(len, vocabulary)) > LETTERS:
        raise _refusal(f"has an entry of {max(map(len, vocabulary)):,} characters", f"at most {LETTERS:,}")
    unknown = model.get("unk_token")
    if unknown not in vocabulary and (kind != "BPE" or (unknown is not None and not bytewise)):
        raise _refusal(f"has no entry {_quoted(unknown)} for unknown words", "one in the vocabulary")
    if kind == "BPE":
        _check_merges(vocabulary, model.get("merges"), model.get("continuing_subword_prefix") or "")


def _check_scores(vocabulary: Any, unknown: Any) -> None:
    if not isinstance(vocabulary, list) or not 0 < len(vocabulary) <= ENTRIES:
        raise _refusal("has no vocabulary of a sensible size", f"1 to {ENTRIES:,} entries with their scores")
    for entry in vocabulary:
        match entry:
            case [str(word), int() | float() as score] if 0 < len(word) <= LETTERS and abs(score) <= 1e9:
                pass
            case _:
                raise _refusal(f"has the entry {_quoted(entry)}", "a word and its score")
    if type(unknown) is not int or unknown >= len(vocabulary):
        raise _refusal(f"has the unk_id {_quoted(unknown)}", "the index of an entry")


def _check_merges(vocabulary: Mapping[str, int], merges: Any, prefix: str) -> None:
    if not isinstance(merges, list) or len(merges) > ENTRIES or not prefix.isascii():
        raise _refusal("has no list of merges of a sensible size", f"at most {ENTRIES:,} pairs")
    for merge in merges:
        match merge.split(" ") if isinstance(merge, str) else merge:
            case [str(left), str(right)] if left in vocabulary and right in vocabulary:
                if right.startswith(prefix) and left + right[len(prefix) :] in vocabulary:
                    continue
        raise _refusal(f"merges {_quoted(merge)}", "two entries that make a third")
