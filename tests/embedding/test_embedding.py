"""Neighbours, maps, probes, copies, analogies: as scikit-learn has them, and right where little is there."""

import json
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.manifold import trustworthiness
from sklearn.metrics import average_precision_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from terminal import picture, small
from trees import tree

from saccade.embedding import map_page, scores
from saccade.embedding.analogies import analogy, difference, nearest, nearest_images
from saccade.embedding.embedded import Embedded, embed, open_pictures, sketch
from saccade.embedding.neighbours import find_copies, find_label_errors, neighbours, normalise
from saccade.embedding.projection import components, project, trust
from saccade.embedding.survey import EmbedSettings, add_pixel_score, read_survey, survey, write_survey
from saccade.errors import DataError, ModelError, UsageError
from saccade.vision.features import Extract
from saccade.weights.load import load

DIGITS, TARGET = load_digits(return_X_y=True)
LARGEST = 10_000_000


class Quiet:
    def say(self, words: str) -> None: ...

    def move(self, step: int, status: str) -> None: ...

    def event(self, kind: str, step: int, **numbers: object) -> None: ...


def vectors(n: int = 200, e: int = 24, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, e)).astype(np.float32)


def embedded(place, data, model=None) -> Embedded:
    found = model or small()
    extract = Extract(found.module, found.preprocess, place / "kept", 16, 0, Quiet())
    return embed(extract, open_pictures(data))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("cells", [1, 999, 10**7])
def test_neighbours_are_those_of_scikit_learn_whatever_the_block(metric, cells, monkeypatch):
    monkeypatch.setattr("saccade.embedding.neighbours.CELLS", cells)
    x = vectors()
    theirs = NearestNeighbors(n_neighbors=7, metric=metric, algorithm="brute").fit(x.astype(np.float64))
    distances, places = theirs.kneighbors()
    ours = neighbours(x, 7, metric=metric)
    assert (ours.places == places).all()
    assert np.allclose(ours.distances, distances, atol=1e-7)
    asked = vectors(9, seed=1)
    distances, places = theirs.kneighbors(asked.astype(np.float64))
    assert (neighbours(x, 7, asked, metric).places == places).all()


def test_equal_distances_are_those_of_scikit_learn_and_ordered_by_number():
    x = DIGITS[:400]  # whole numbers: many distances are equal to the last bit
    ours = neighbours(x, 10, metric="euclidean")
    theirs = NearestNeighbors(n_neighbors=10, algorithm="brute").fit(x).kneighbors()
    assert np.allclose(ours.distances, theirs[0], rtol=1e-12)
    exact = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.fill_diagonal(exact, np.inf)
    assert (ours.places == np.argsort(exact, axis=1, kind="stable")[:, :10]).all()
    tied = ours.distances[:, -1:] > ours.distances  # inside of the k-th distance there is one right set
    for row in range(len(x)):
        assert set(ours.places[row][tied[row]]) <= set(theirs[1][row])


def test_a_picture_is_never_its_own_neighbour_even_among_copies():
    x = np.repeat(vectors(3), 4, axis=0)
    found = neighbours(x, 3)
    assert (found.places != np.arange(12)[:, None]).all()
    assert (found.distances <= 1e-15).all()
    assert found.places[5].tolist() == [4, 6, 7]


def test_thousands_of_equal_vectors_are_taken_by_number():
    x = np.ones((6000, 2), np.float32)
    assert neighbours(x, 3, x[:2]).places.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_tiny_differences_of_large_vectors_are_seen():
    x = np.full((5, 8), 1e4)
    x[:, 0] += np.array([0, 3e-5, 1e-5, 2e-5, 9e-5])
    assert neighbours(x, 4, metric="euclidean").places[0].tolist() == [2, 3, 1, 4]


def test_zeros_have_no_direction():
    x = np.array([[0, 0], [0, 0], [1, 0], [-1, 0.1]], np.float32)
    found = neighbours(x, 3)
    assert found.places[0].tolist() == [1, 2, 3]
    assert np.allclose(found.distances[0], [0, 1, 1])
    assert np.allclose(found.distances[2], [1, 1, 2], atol=0.01)


def test_few_vectors_have_few_neighbours():
    assert neighbours(vectors(1), 5).places.shape == (1, 0)
    assert neighbours(vectors(2), 5).places.tolist() == [[1], [0]]
    assert neighbours(vectors(3), 5, vectors(2)).places.shape == (2, 3)
    assert neighbours(vectors(3), 5, vectors(0)).places.shape == (0, 3)


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ModelError, match="not all finite"):
        neighbours(np.full((3, 2), np.nan), 1)
    with pytest.raises(UsageError, match="queries have 5 numbers each, the vectors 24"):
        neighbours(vectors(), 1, vectors(2, 5))
    with pytest.raises(UsageError, match="metric is 'cosin', which is not known; did you mean 'cosine'"):
        neighbours(vectors(), 1, metric="cosin")
    with pytest.raises(UsageError, match="index is 'fais'"):
        neighbours(vectors(), 1, index="fais")


def test_a_package_that_is_missing_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UsageError, match="pip install faiss-cpu, or use exact"):
        neighbours(vectors(), 1, index="faiss")
    with pytest.raises(UsageError, match="pip install umap-learn, or use tsne"):
        project(vectors(), "umap")


def test_faiss_finds_the_same():
    pytest.importorskip("faiss")
    for metric in ("cosine", "euclidean"):
        for queries in (None, vectors(20, seed=3)):
            ours, theirs = (neighbours(vectors(), 5, queries, metric, how) for how in ("exact", "faiss"))
            assert (ours.places == theirs.places).all()
            assert np.allclose(ours.distances, theirs.distances)


@pytest.mark.slow  # its first call compiles for a minute
def test_umap_is_the_same_for_the_same_seed():
    pytest.importorskip("umap")
    first, second = (project(vectors(40), "umap", 3).points for _ in range(2))
    assert (first == second).all()


def test_principal_components_are_those_of_the_covariance():
    x = vectors(50, 6)
    found = components(x, 2)
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    assert np.allclose(found.var(0, ddof=1), values[:2])
    assert np.allclose(components(x[:, :1], 2)[:, 1], 0)
    assert (components(-x, 2)[np.abs(found).argmax(0), [0, 1]] > 0).all()


@pytest.mark.parametrize("chosen", [300, pytest.param(1797, marks=pytest.mark.slow)])
def test_tsne_of_the_digits_can_be_trusted(chosen):
    made = project(DIGITS[:chosen], "tsne", metric="euclidean")
    assert made.way == "tsne"
    found = trust(DIGITS[:chosen], made.points, metric="euclidean")
    assert found == trustworthiness(DIGITS[:chosen], made.points, n_neighbors=12)
    assert found >= 0.97


def test_the_seed_decides_a_map():
    x = vectors(40)
    first, again, other = (project(x, "tsne", seed).points for seed in (0, 0, 1))
    assert (first == again).all()
    assert np.isfinite(first).all()
    assert other.shape == (40, 2)


@pytest.mark.parametrize("way", ["tsne", "pca"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7])
def test_a_few_pictures_have_a_map(way, n):
    made = project(vectors(n), way)
    assert made.points.shape == (n, 2)
    assert np.isfinite(made.points).all()
    if way == "tsne" and 1 < n < 5:
        assert made.note == f"{n} vectors are too few for t-SNE (5 or more); PCA was used"
    if way == "tsne" and n >= 5:
        assert "a perplexity of 30 needs more than 90 vectors" in made.note
    assert np.isnan(trust(vectors(n), made.points))


@pytest.mark.parametrize("way", ["tsne", "pca"])
def test_equal_vectors_share_one_place(way):
    made = project(np.ones((12, 4), np.float32), way)
    assert (made.points == 0).all()
    made = project(np.repeat(vectors(2, 4), 6, axis=0), way)
    assert np.isfinite(made.points).all()


def test_votes_elect_as_scikit_learn_does_and_ties_go_to_the_nearest():
    x, y = DIGITS[:300], TARGET[:300].astype(np.int64)
    train, held = np.arange(200), np.arange(200, 300)
    theirs = KNeighborsClassifier(1, algorithm="brute").fit(x[train], y[train])
    ours = scores.knn(x, y, 10, 1, "euclidean", (train, held))
    assert ours == theirs.score(x[held], y[held])
    near = np.array([[0, 1, 2, 3]])
    assert scores.vote(near, np.array([1, 0, 0, 1]), 2).tolist() == [1]
    assert scores.vote(near, np.array([1, 0, 0, 2]), 3).tolist() == [0]


def test_retrieval_is_the_mean_of_average_precisions():
    x, y = vectors(60), np.random.default_rng(1).integers(0, 4, 60)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    found = []
    for i in range(60):
        others = np.arange(60) != i
        found.append(average_precision_score(y[others] == y[i], (unit @ unit[i])[others]))
    assert scores.mean_average_precision(x, y) == pytest.approx(np.mean(found), abs=1e-6)
    assert np.isnan(scores.mean_average_precision(x[:3], np.arange(3)))
    assert scores.mean_average_precision(x, y, most=10) != scores.mean_average_precision(x, y)


@pytest.mark.parametrize("n", [10, 25, 80])
def test_the_few_shot_probe_is_the_closed_form_of_ridge_regression(n):
    x, y = scores.standardise(vectors(n), vectors(n)), np.arange(n) % 3
    assert np.allclose(x[:, -1], 100)
    theirs = Ridge(alpha=scores.PENALTY, fit_intercept=False).fit(x, 2.0 * np.eye(3)[y] - 1)
    assert np.allclose(scores.least_squares(x, y, 3), theirs.coef_.T, atol=1e-9)


def test_the_probes_of_the_digits_are_right_and_of_noise_they_are_not():
    x, y = DIGITS[:500].astype(np.float32), TARGET[:500].astype(np.int64)
    parted = np.arange(400), np.arange(400, 500)
    assert scores.few_shot(x, y, 10, 5, 0, parted) > 0.6
    assert scores.few_shot(x, y, 10, 20, 0, parted) > scores.few_shot(x, y, 10, 1, 0, parted)
    assert scores.linear(x, y, 10, 0, parted) > 0.9
    assert scores.linear(x[:200], y[:200], 10) > 0.85
    noise = np.random.default_rng(0).permutation(y)
    assert scores.linear(x[:200], noise[:200], 10) < 0.3
    assert scores.few_shot(x, noise, 10, 5, 0) < 0.2


def test_a_class_of_one_picture_is_drawn_and_never_asked():
    y = np.array([0, 0, 0, 1])
    assert scores.draw_shots(y, np.arange(4), 5, 0).tolist() in ([0, 1, 3], [0, 2, 3], [1, 2, 3])
    assert 0 <= scores.few_shot(vectors(4), y, 2) <= 1
    assert np.isnan(scores.linear(vectors(2), np.array([0, 1]), 2))


def test_copies_are_found_and_likeness_alone_is_no_copy():
    x = vectors(60, 32)
    x[40] = 1.5 * x[7]
    x[41] = x[8] + 0.02 * vectors(1, 32, 9)[0]
    assert [pair[:2] for pair in find_copies(x)] == [(7, 40), (8, 41)]
    crowd = np.ones(32) + 0.1 * vectors(60, 32)  # all cosines are above 0.9
    assert (neighbours(crowd, 1).distances < 0.1).all()
    assert find_copies(crowd) == []
    assert find_copies(x[:1]) == []
    assert [pair[:2] for pair in find_copies(np.ones((2, 3), np.float32))] == [(0, 1)]


def test_a_label_that_its_neighbours_contradict_is_found():
    x = np.concatenate([vectors(30, 8), vectors(30, 8, 1) + 6])
    y = np.repeat([0, 1], 30)
    y[3] = 1
    [first, *_] = find_label_errors(neighbours(x, 10, metric="euclidean"), y, 2)
    assert (first.row, first.answer) == (3, 0)
    assert first.p_answer >= 0.9
    assert find_label_errors(neighbours(x[:1], 10), y[:1], 2) == []


def test_king_is_to_man_as_queen_is_to_woman(data):
    held = np.load(data / "text" / "googlenews_word2vec_subset.npz")
    words, found = held["words"].tolist(), held["vectors"]
    if {"man", "woman", "king", "queen"} <= set(words):
        assert analogy(found, words, "man", "king", "woman")[0].name == "queen"
    capital = analogy(found, words, "Athens", "Greece", "Cairo", top=3)
    assert capital[0].name == "Egypt"
    assert not {near.name for near in capital} & {"Athens", "Greece", "Cairo"}


def test_an_analogy_is_the_nearest_to_the_sum_of_directions():
    x = np.array([[2.0, 0, 0], [0, 3, 0], [0, 0, 1], [-1, 1, 1], [1, 1, 1]])
    assert np.allclose(difference(x[0], x[1], x[2]), [-1, 1, 1])
    assert [near.name for near in analogy(x, list("abcde"), "a", "b", "c", 9)] == ["d", "e"]
    with pytest.raises(UsageError, match="none of the 5 vectors is named q; check the spelling"):
        analogy(x, list("abcde"), "a", "b", "q")
    with pytest.raises(UsageError, match="2 names for 5 vectors"):
        nearest(x, ["a", "b"], x[0])
    assert nearest(x[:1], ["a"], x[0], without=[0]) == []


def test_features_are_those_of_the_python_face_and_are_kept(tmp_path):
    model, data = (
        small(),
        tree(tmp_path / "data", {"train/cat": 3, "train/dog": 4, "val/cat": 2, "val/dog": 2}),
    )
    found = embedded(tmp_path, data)
    paths = [data / name for name in found.names]
    assert np.allclose(found.vectors, model.embed(paths), atol=1e-5)
    assert found.splits == ["train"] * 7 + ["val"] * 4
    assert [found.label(i) for i in range(11)] == [path.parent.name for path in paths]
    assert [part.tolist() for part in found.split()] == [list(range(7)), list(range(7, 11))]
    model.module.encode = None  # what is kept is not computed again
    assert (embedded(tmp_path, data, model).vectors == found.vectors).all()


def test_a_flat_folder_has_no_labels(tmp_path):
    for i in range(6):
        picture(tmp_path / f"{i}.png", i)
    (tmp_path / "later").mkdir()
    picture(tmp_path / "later" / "7.png", 7)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "cut.png").write_bytes((tmp_path / "1.png").read_bytes()[:99])
    opened = open_pictures(tmp_path)
    assert opened.summary == "folder: 8 images without labels"
    found = embedded(tmp_path, tmp_path)
    assert found.names == [*(f"{i}.png" for i in range(6)), "later/7.png"]
    assert found.unread == ["cut.png"]
    assert not found.labelled
    seen = survey(found, EmbedSettings(neighbours=3))
    assert np.isnan(seen.scores.knn)
    assert seen.suspects == []
    assert seen.to_json()["classes"] == []


def test_not_one_readable_picture_is_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DataError, match="none of the 1 images can be read; run `saccade check`"):
        embedded(tmp_path, tmp_path)


def test_a_missing_place_is_refused_as_by_every_verb(tmp_path):
    with pytest.raises(DataError, match="there is nothing at"):
        open_pictures(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is empty"):
        open_pictures(tmp_path / "empty")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A survey of three classes with a copy in it, and the pictures in small."""
    root = tmp_path_factory.mktemp("seen")
    data = tree(root / "data", {"cat": 9, "dog": 9, "<script>alert(1)": 9})
    (data / "dog" / "copy.png").write_bytes((data / "cat" / "3.png").read_bytes())
    found = survey(embedded(root, data), EmbedSettings(neighbours=4, seed=1))
    sketches = sketch(found.found.images, map_page.rows_on_page(found), 8)
    return add_pixel_score(found, sketches.pixels), sketches


def test_a_survey_tells_all(seen):
    told = seen[0].to_json()
    assert told["pictures"] == 28
    assert told["copies"][0]["pictures"] == ["cat/3.png", "dog/copy.png"]
    assert told["copies"][0]["cosine"] == 1
    assert told["scored"] == "leave one out"
    for key in ("knn", "nearest", "pixels", "few_shot", "linear", "retrieval", "chance"):
        assert 0 <= told["scores"][key] <= 1, key
    assert told["scores"]["chance"] == 10 / 28
    assert told["map"]["way"] == "tsne"
    assert 0 < told["map"]["trust"] <= 1
    assert told["look"]["seed"] == 1


def test_what_is_written_is_read_back(seen, tmp_path):
    write_survey(tmp_path, seen[0])
    page = map_page.write_map(tmp_path, *seen, "a title")
    kept = read_survey(tmp_path)
    assert (kept.features == seen[0].found.vectors).all()
    assert (kept.neighbours == seen[0].near.places).all()
    assert kept.names == seen[0].found.names
    assert kept.labels[0] == seen[0].found.label(0)
    numbers = json.loads((tmp_path / "map.json").read_text())
    assert [row[2:] for row in numbers["rows"]] == seen[0].map.points.tolist()
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(seen[0].to_json()))
    assert page.name == "map.html"
    (tmp_path / "pictures.csv").write_text("row,split,label,picture\n")
    with pytest.raises(ModelError, match="has 0 names for 28 vectors; embed again"):
        read_survey(tmp_path)


def test_the_page_asks_for_nothing_and_a_label_is_no_markup(seen, tmp_path):
    html = map_page.write_map(tmp_path, *seen, "a title").read_text(encoding="utf-8")
    assert "default-src &#x27;none&#x27;" in html or "default-src 'none'" in html
    assert "script-src" in html
    assert "<script>alert" not in html
    assert "http://" not in html
    assert "https://" not in html
    assert html.count("data:image/png") >= 28
    assert html.count("<script") == 2


def test_a_page_of_two_thousand_photographs_stays_small(tmp_path):
    for i in range(8):
        picture(tmp_path / f"{i}.png", i)
    thumbs = sketch(open_pictures(tmp_path).splits["train"], set(range(2000)), 8).thumbs
    longest = max(map(len, thumbs.values()))  # of noise, which is harder to pack than any photograph
    assert 2000 * longest < LARGEST


def test_a_query_leaves_itself_out_and_may_be_a_new_file(tmp_path):
    model = small()
    loaded = load(model.save(tmp_path / "model"))
    data = tree(tmp_path / "data", {"cat": 4, "dog": 4})
    found = embedded(tmp_path, data)
    copy = tmp_path / "copy.png"
    copy.write_bytes((data / "dog" / "2.png").read_bytes())
    [(_, near)] = nearest_images(loaded, found, [str(copy)], top=3)
    assert near[0].name == "dog/2.png"
    assert near[0].distance == pytest.approx(0, abs=1e-6)
    for word in ("dog/2.png", str(data / "dog" / "2.png")):
        [(_, near)] = nearest_images(loaded, found, [word], top=99)
        assert len(near) == 7
        assert "dog/2.png" not in {each.name for each in near}
    [(told, near)] = nearest_images(loaded, found, analogy=("cat/0.png", "dog/0.png", "cat/1.png"))
    assert told == "cat/1.png + dog/0.png - cat/0.png"
    assert not {each.name for each in near} & {"cat/0.png", "dog/0.png", "cat/1.png"}
    with pytest.raises(UsageError, match=r"did you mean dog/2\.png"):
        nearest_images(loaded, found, ["dog/22.png"])


def test_vectors_are_made_ready_without_overflow():
    assert np.allclose(np.linalg.norm(normalise(np.full((2, 3), 1e300)), axis=1), 1)
    assert np.allclose(normalise(torch.zeros(1, 3).numpy()), 0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"way": "tnse"}, "did you mean 'tsne'"),
        ({"neighbours": 0}, "neighbours is 0"),
        ({"perplexity": 0.0}, "perplexity is 0.0"),
        ({"alike": 2.0}, "alike is 2.0"),
    ],
)
def test_a_look_that_cannot_be_is_refused(change, told):
    with pytest.raises(UsageError, match=told):
        EmbedSettings(**change)
