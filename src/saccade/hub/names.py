"""Names of repositories on the hub, as a person types them."""

import re

from saccade.errors import UsageError

WORD = r"\w(?:[\w.-]*\w)?"
NAME = re.compile(rf"(?:hf-hub:|hf_hub:|hf:)?({WORD}/{WORD})(?:@(.+))?", re.ASCII)
REVISION = re.compile(rf"{WORD}(?:/{WORD})*", re.ASCII)
EXAMPLES = {"model": "google/vit-base-patch16-224", "dataset": "uoft-cs/cifar10"}


def read_name(name: str, revision: str | None = None, kind: str = "model") -> tuple[str, str]:
    """Read "owner/name", "hf-hub:owner/name" or "owner/name@revision" into owner/name and a revision."""
    match = NAME.fullmatch(name)
    if match is None or len(match[1]) > 96 or re.search(r"--|\.\.|\.git$", match[1]):
        raise UsageError(
            f"{name[:60]!r} is not a name on the hub; names look like {EXAMPLES[kind]} or "
            "owner/name@revision; give the two words that its page shows, without an address or a path"
        )
    wanted = sorted({text for text in (revision, match[2]) if text is not None}) or ["main"]
    if len(wanted) > 1 or len(wanted[0]) > 100 or ".." in wanted[0] or not REVISION.fullmatch(wanted[0]):
        raise UsageError(
            f"{' and '.join(repr(text[:60]) for text in wanted)} is not a revision of {match[1]}; "
            "expected one branch, tag or commit, such as main; leave it out for the newest"
        )
    return match[1], wanted[0]
