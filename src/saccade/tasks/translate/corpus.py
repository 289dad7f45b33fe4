"""Where sentence pairs lie: in files that data/bitext.py reads, or in folders with splits of these."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from glob import escape
from pathlib import Path

from saccade.data.image.formats import shown
from saccade.data.readers.listing import TEST, TRAIN, VAL, nearest, some, split_of
from saccade.errors import DataError, UsageError
from saccade.tasks.translate.data import Corpus, Reader, corpus, languages
from saccade.tasks.translate.pair_files import Jsonl, Two, known_ones, reader_of

_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
_FILE = re.compile(r"(?P<stem>.+?)\.(?P<end>[A-Za-z_-]+)(?:\.gz)?")
_ENDINGS = ("tsv", "txt", "jsonl", "ndjson", "json", "tab")


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(place, file) for file in sorted(files) if not file.startswith("."))


def _asked(pair: str, known: Sequence[str], where: str) -> tuple[str, str]:
    """The languages to translate from and to, of those found."""
    asked = languages(pair)
    if asked is None:
        if len(known) != 2:
            raise UsageError(
                f"{where} has the languages {', '.join(known)}; say which to translate, as from-to: "
                f"pair={known[0]}-{known[-1]}"
            )
        return known[0], known[1]
    for language in asked:
        if language not in known:
            raise UsageError(
                f"{where} has no language {language!r}, which the pair {pair} asks for; "
                f"{known_ones(language, known)}"
            )
    return asked


def _beside(files: Sequence[Path], pair: str, where: str) -> tuple[dict[str, Reader], tuple[str, ...]]:
    """The stems that two languages share: train.de and train.en; and notes on others."""
    stems: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    for path in files:
        match = _FILE.fullmatch(path.name)
        if match and _LANGUAGE.fullmatch(match["end"]) and match["end"] not in _ENDINGS:
            stems[path.parent, match["stem"]][match["end"]] = path
    asked = _asked(pair, sorted({language for found in stems.values() for language in found}), where)
    made: dict[str, Reader] = {}
    whole = {place: found for place, found in stems.items() if set(asked) <= found.keys()}
    for (_, stem), found in whole.items():
        if stem in made:
            raise DataError(f"{where} has two sets of files {stem!r}; give the folder of one of them")
        made[stem] = Two((found[asked[0]], found[asked[1]]), asked)
    if not made:
        raise DataError(f"{where} has no file in both {asked[0]} and {asked[1]}; expected two of one name")
    lone = [stem for place, stem in stems.keys() - whole.keys()]
    return made, (f"only in one of the languages, so not used: {some(sorted(lone))}",) if lone else ()


def _folder(folder: Path, pair: str, bad: float, learns: bool) -> Corpus:
    files, where = list(_walk(folder)), shown(folder)
    ends = {path: match for path in files if (match := _FILE.fullmatch(path.name))}
    notes: tuple[str, ...] = ()
    made: dict[str, Reader]
    if any(_LANGUAGE.fullmatch(match["end"]) and match["end"] not in _ENDINGS for match in ends.values()):
        kind = "two files"
        made, notes = _beside(files, pair, where)
    else:
        stems = {path: match["stem"] for path, match in ends.items() if match["end"].lower() in _ENDINGS}
        parts = {path: stem for path, stem in stems.items() if split_of(stem) is not None} or stems
        if not parts:
            raise DataError(
                f"{where} holds no sentence pairs; expected train.de and train.en, train.tsv or train.jsonl"
            )
        made = {stem: reader_of(path, pair) for path, stem in parts.items()}
        kind = "jsonl" if isinstance(next(iter(made.values())), Jsonl) else "tsv"
    splits = {stem: TRAIN if (found := split_of(stem)) is None else found for stem in made}
    if TRAIN not in splits.values() and not learns:
        splits = dict.fromkeys(made, TRAIN)
    if TRAIN not in splits.values():
        raise DataError(f"{where} has pairs only in {some(list(splits))}; expected some named train as well")
    train, val = ([made[s] for s, split in splits.items() if split == wanted] for wanted in (TRAIN, VAL))
    tests = {stem: made[stem] for stem, split in splits.items() if split == TEST}
    opened = corpus(train, val, tests, kind, bad)
    return replace(opened, warnings=(*notes, *opened.warnings))


def open_pairs(data: str, pair: str = "", bad: float = 0.01, learns: bool = True) -> Corpus:
    """Open a folder, a file, two files with a comma between them, or what comes before .de and .en.

    Args:
        pair: From which language to which, as de-en; needed where there are more than two.
        bad: The share of pairs with an empty side that is borne.
        learns: Whether there must be pairs to learn from; else a folder of test pairs alone will do.
    """
    path = Path(data)
    if path.is_dir():
        return _folder(path, pair, bad, learns)
    if path.exists():
        reader = reader_of(path, pair)
        return corpus([reader], [], {}, "jsonl" if isinstance(reader, Jsonl) else "tsv", bad)
    if "," in data:
        paths = [Path(part.strip()) for part in data.split(",")]
        if len(paths) != 2:
            raise UsageError(f"{data} names {len(paths)} files; expected two, first.de,second.en")
        return corpus([Two((paths[0], paths[1]), _ends(paths, pair))], [], {}, "two files", bad)
    beside = [found for found in sorted(path.parent.glob(f"{escape(path.name)}.*")) if found.is_file()]
    if path.name and len(beside) > 1:
        made, notes = _beside(beside, pair, shown(data))
        return replace(corpus(list(made.values()), [], {}, "two files", bad), warnings=notes)
    raise DataError(f"there is no file or folder {shown(data)}; expected sentence pairs; {nearest(data)}")


def _ends(paths: Sequence[Path], pair: str) -> tuple[str, str]:
    """What two files hold, by their endings; a pair that is given must agree."""
    found = [match["end"] if (match := _FILE.fullmatch(path.name)) else "" for path in paths]
    sides = (found[0], found[1]) if all(map(_LANGUAGE.fullmatch, found)) else ("source", "target")
    asked = languages(pair)
    if asked is not None and sides != ("source", "target") and asked != sides:
        raise UsageError(f"the pair is {pair}, but the files are {'-'.join(sides)}; change one of them")
    return asked or sides
