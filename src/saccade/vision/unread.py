"""Pictures that cannot be read any more, because files change while we learn: named, counted, borne."""

from collections.abc import Callable, Iterable, Iterator

from saccade.data.image.decode import decode
from saccade.data.pictures import Images
from saccade.errors import DataError
from saccade.tasks.task import Batch


def count(
    known: set[int], found: Iterable[int], images: Images, borne: float, say: Callable[[str], None]
) -> None:
    """Add pictures to those known as unreadable, each with its reason; more than the share borne end it.

    One is always borne: it says nothing about the others.
    """
    for number in found:
        if number not in known:
            known.add(number)
            say(f"left out: {_reason(images, number)}")
    if len(known) > max(borne * len(images), 1):
        raise DataError(
            f"{len(known)} of {len(images)} pictures cannot be read, more than the {borne:.0%} that is "
            "borne; run `saccade check`, or set bad higher"
        )


def _reason(images: Images, number: int) -> str:
    try:
        decode(images.open(number))
    except DataError as error:
        return str(error)
    return f"{images.name(number)} could not be read"


def noted(batches: Iterable[Batch], seen: set[int]) -> Iterator[Batch]:
    """The same batches; the numbers of their pictures are put into `seen`."""
    for batch in batches:
        seen.update(batch["index"].tolist())
        yield batch
