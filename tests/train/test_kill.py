"""kill -9 at any moment of a run, and at each named point of it: it goes on to the same bytes."""

import random

import pytest
from nursery import POINTS, ask
from place import KILLED, Place, placed, proof


@pytest.fixture(scope="module")
def place(request):
    with placed(epochs=getattr(request, "param", 3)) as made:
        yield made


def nth(place: Place, point: str, source: random.Random) -> int:
    return source.randint(1, place.calls[point])


@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_a_named_point_goes_on_to_the_same_bytes(place, point):
    assert place.trial(point, point=point, nth=nth(place, point, random.Random(point)))


@pytest.mark.parametrize("number", range(6))
def test_a_run_killed_at_a_random_moment_goes_on_to_the_same_bytes(place, number):
    source = random.Random(number)
    delay = source.uniform(0, 0.8) * place.seconds
    place.trial(f"time-{number}", save=(0, 0.2)[number % 2], delay=[delay], signal=[9])


@pytest.mark.parametrize("nth", [2, 4, 6, 9])
def test_a_run_killed_as_it_begins_is_no_run_yet_or_goes_on_to_the_same_bytes(place, nth):
    run = place.folder / f"born-{nth}"
    assert place.begin(run, point="rename", nth=nth)["code"] == KILLED
    there = (run / "recipe.json").exists()
    told = run.with_suffix(".told")
    assert ask("resume", run, told=told)["code"] == (0 if there else 2)
    assert proof(run) == place.proof if there else "is not a run folder" in told.read_text()


def test_a_run_killed_again_and_again_goes_on_to_the_same_bytes(place):
    run, source, kills = place.copy("often"), random.Random(1), 0
    while ask("resume", run, point="rename", nth=source.randint(3, 14))["code"] == KILLED:
        kills += 1
    assert kills >= 5
    assert proof(run) == place.proof


@pytest.mark.slow
@pytest.mark.parametrize("place", [8], indirect=True)
def test_of_140_kills_all_go_on_to_the_same_bytes(place):
    source, killed = random.Random(0), 0
    for number in range(40):
        point = POINTS[number % len(POINTS)]
        killed += place.trial(f"point-{number}", point=point, nth=nth(place, point, source))
    assert killed == 40
    while killed < 140:
        delay = source.uniform(0, 1) * place.seconds
        killed += place.trial(f"time-{killed}", save=killed % 2 * 0.2, delay=[delay], signal=[9])
