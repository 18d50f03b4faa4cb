"""Files that are missing, broken or wrong: always an InputError that says so, never a traceback from below."""

import gzip
import io

import numpy as np
import pytest

from sketchfed.data import DATA_SETS, images, load
from sketchfed.data.shakespeare import ALPHABET
from sketchfed.errors import InputError

IN_FILES = [name for name in DATA_SETS if name != "digits"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SKETCHFED_DATA", str(tmp_path))
    monkeypatch.setattr(images, "FASHION_MNIST_FOLDER", tmp_path / "debian")
    return tmp_path


def small_mnist(**changed):
    rng = np.random.default_rng(1)
    arrays = {
        "x_train": rng.integers(0, 256, (12, 28, 28), np.uint8),
        "y_train": np.arange(12, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (5, 28, 28), np.uint8),
        "y_test": np.arange(5, dtype=np.uint8),
    }
    return {key: value for key, value in (arrays | changed).items() if value is not None}


def small_ujiindoorloc(**changed):
    rng, arrays = np.random.default_rng(1), {}
    for part, rows in (("train", 8), ("test", 3)):
        arrays |= {
            f"x_{part}": rng.choice(np.array([-104, -52, 0, 100], np.int8), (rows, 520)),
            f"longitude_{part}": rng.normal(-7500, 100, rows),
            f"latitude_{part}": rng.normal(4864900, 50, rows),
            f"building_{part}": np.arange(rows) % 3,
            f"floor_{part}": np.arange(rows) % 5,
        }
    return arrays | {"user_train": np.array([1, 1, 3, 3, 3, 18, 18, 1]), "phone_train": np.full(8, 24)} | changed


@pytest.mark.parametrize("name", IN_FILES)
def test_a_missing_file_says_what_it_is_where_it_was_sought_and_how_to_get_it(name, folder, monkeypatch):
    with pytest.raises(InputError) as here:
        load(name)
    assert f"data set '{name}' is not here: looked for" in str(here.value)
    assert str(folder) in str(here.value)
    monkeypatch.delenv("SKETCHFED_DATA")
    with pytest.raises(InputError, match=r"SKETCHFED_DATA, which names its folder, is not set.* by .* Save it as .* with "):
        load(name)
    monkeypatch.setenv("SKETCHFED_DATA", "")
    with pytest.raises(InputError, match="is not set"):
        load(name)


def test_an_image_file_in_any_integer_type_is_read(folder):
    arrays = small_mnist()
    np.savez(folder / "mnist.npz", **{key: array.astype(np.int64) for key, array in arrays.items()})
    data = load("mnist")
    assert data.x_train.numpy().tolist() == arrays["x_train"].tolist()
    assert data.x_train.element_size() == 1
    assert data.prepare(data.x_test).shape == (5, 1, 28, 28)
    assert float(data.prepare(data.x_test)[3, 0, 5, 6]) == pytest.approx(arrays["x_test"][3, 5, 6] / 255)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"y_test": None}, "lacks y_test"),
        (
            {"x_train": np.zeros((12, 28, 27), np.uint8)},
            r"x_train should be \(train, 28, 28\).* but is uint8 of shape \(12, 28, 27\)",
        ),
        ({"y_train": np.zeros(11, np.uint8)}, r"y_train should be \(train,\) .*train = 12, but is uint8 of shape \(11,\)"),
        ({"y_train": np.full(12, 10)}, "y_train should be .* from 0 to 9, but has 10 to 10"),
        ({"x_test": np.full((5, 28, 28), -1)}, "x_test should be .* but has -1 to -1"),
        ({"x_train": np.zeros((12, 28, 28))}, "x_train should be .* but is float64"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, np.uint8)}, r"but is uint8 of shape \(0, 28, 28\)"),
        ({"y_train": np.array(["a"] * 12)}, "y_train should be .* but is <U1"),
        ({"y_train": np.array([None] * 12)}, "cannot be read .*Object arrays cannot be loaded"),
    ],
)
def test_wrong_arrays_are_named(folder, changed, complaint):
    np.savez(folder / "mnist.npz", **small_mnist(**changed))
    with pytest.raises(InputError, match=complaint):
        load("mnist")


def test_what_is_no_archive_is_refused(folder):
    path = folder / "mnist.npz"
    one_array = io.BytesIO()
    np.save(one_array, np.zeros(3))
    for content in (b"", b"PK\3\4 and then nothing", b"\x80\x04K\x01.", one_array.getvalue()):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"mnist\.npz cannot be read"):
            load("mnist")
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match=r"mnist\.npz cannot be read"):
        load("mnist")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_files_are_refused_or_still_right(folder, save):
    """Cut short anywhere, or with any byte changed; the zip format has bytes that do not matter."""
    path = folder / "mnist.npz"
    save(path, **small_mnist())
    whole, expected, refused = path.read_bytes(), load("mnist"), 0
    rng = np.random.default_rng(2)
    damaged = [whole[:cut] for cut in rng.integers(0, len(whole), 40)]
    for place in np.concatenate([rng.integers(0, len(whole), 60), np.arange(0, 200, 4), len(whole) - np.arange(1, 200, 4)]):
        damaged.append(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        try:
            data = load("mnist")
        except InputError:
            refused += 1
        else:
            assert data.x_train.equal(expected.x_train)
            assert data.y_test.equal(expected.y_test)
    assert refused > 100


def idx(array):
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes())


def write_idx_files(folder, **changed):
    folder.mkdir(exist_ok=True)
    arrays = small_mnist(**changed)
    for prefix, part in (("train", "train"), ("t10k", "test")):
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx(arrays[f"x_{part}"]))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx(arrays[f"y_{part}"]))
    return arrays


def test_fashion_mnist_is_also_read_from_debians_files(folder):
    arrays = write_idx_files(folder / "debian")
    data = load("fashion_mnist")
    assert data.name == "fashion_mnist"
    for key, array in arrays.items():
        assert getattr(data, key).tolist() == array.tolist()
    np.savez(folder / "fashion_mnist.npz", **small_mnist(y_test=np.full(5, 9)))
    assert load("fashion_mnist").y_test.tolist() == [9] * 5


def test_debians_files_are_checked_too(folder):
    debian = folder / "debian"
    write_idx_files(debian, y_train=np.full(12, 10, np.uint8))
    with pytest.raises(InputError, match=r"y_train should be .* but has 10 to 10"):
        load("fashion_mnist")
    write_idx_files(debian)
    labels = debian / "t10k-labels-idx1-ubyte.gz"
    for content in (b"no gzip", gzip.compress(b""), gzip.compress(b"\0\0\x0d\1\0\0\0\1."), idx(np.zeros(5, np.uint8))[:-9]):
        labels.write_bytes(content)
        with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\.gz cannot be read"):
            load("fashion_mnist")
    labels.write_bytes(gzip.compress(b"\0\0\x08\1\xff\xff\xff\xff."))
    with pytest.raises(InputError, match="cannot be read"):
        load("fashion_mnist")
    labels.unlink()
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\.gz cannot be read \(FileNotFoundError"):
        load("fashion_mnist")


def test_ujiindoorloc_signals_floors_positions_and_owners(folder):
    arrays = small_ujiindoorloc()
    np.savez(folder / "ujiindoorloc.npz", **arrays)
    data = load("ujiindoorloc")
    level = {-104: 0, -52: 0.5, 0: 1, 100: 0}
    assert data.prepare(data.x_train).tolist() == [[level[int(value)] for value in row] for row in arrays["x_train"]]
    assert data.y_train.tolist() == [0, 6, 12, 3, 9, 10, 1, 7]
    assert data.outputs == 15
    assert data.groups.tolist() == [0, 0, 1, 1, 1, 2, 2, 0]
    position = load("ujiindoorloc", target="position", by="phone")
    assert position.task == "regression"
    assert position.outputs == 2
    assert position.groups.tolist() == [0] * 8
    assert position.y_train.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert position.y_train.std(0, correction=0).tolist() == pytest.approx([1, 1])
    longitude = arrays["longitude_train"]
    assert float(position.y_test[1, 0]) == pytest.approx((arrays["longitude_test"][1] - longitude.mean()) / longitude.std())


def test_ujiindoorloc_refuses_what_it_cannot_mean(folder):
    for options, complaint in (
        ({"target": "room"}, "no target .* Known: floor, position"),
        ({"by": "age"}, "Known: user, phone"),
    ):
        with pytest.raises(InputError, match=complaint):
            load("ujiindoorloc", **options)
    np.savez(folder / "ujiindoorloc.npz", **small_ujiindoorloc(x_test=np.full((3, 520), 50)))
    with pytest.raises(InputError, match="x_test has signals above 0 dBm that are not 100"):
        load("ujiindoorloc")
    np.savez(folder / "ujiindoorloc.npz", **small_ujiindoorloc(longitude_test=np.array([1.0, np.nan, 2.0])))
    with pytest.raises(InputError, match=r"longitude_test .* NaN or infinite"):
        load("ujiindoorloc")


def test_adult_codes_stay_within_their_column(folder):
    arrays = {"y_train": np.array([0, 1]), "y_test": np.array([1])}
    for part, rows in (("train", 2), ("test", 1)):
        arrays |= {f"x_num_{part}": np.ones((rows, 6), int), f"x_cat_{part}": np.zeros((rows, 8), int)}
    arrays["x_num_train"][1, 0] = 3
    np.savez(folder / "adult.npz", **arrays)
    data = load("adult")
    prepared = data.prepare(data.x_train)
    assert prepared.shape == (2, 108)
    assert prepared[:, :6].tolist() == [[-1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert prepared[:, 6:].sum(1).tolist() == [8, 8]
    arrays["x_cat_test"][0, 6] = 2
    np.savez(folder / "adult.npz", **arrays)
    with pytest.raises(InputError, match="x_cat_test has codes of sex above 1"):
        load("adult")


def write_play(folder, text):
    (folder / "tinyshakespeare.txt.gz").write_bytes(gzip.compress(text.encode()))


def test_shakespeare_speakers_say_windows_of_their_own_text(folder):
    romeo, juliet = "But soft, what light\nthrough yonder", "O Romeo, Romeo! wherefore art thou"
    write_play(
        folder, f"ROMEO:\n{romeo}\n\nJULIET:\n{juliet}\n\nROMEO:\nwindow breaks?\n\n\nIt is the east.\n\nNURSE:\nMadam!\n"
    )
    data = load("shakespeare", window=2, shortest=34)

    def said(rows):
        return "".join(ALPHABET[code] for code in rows[:, 0]) + "".join(ALPHABET[code] for code in rows[-1, 1:])

    texts = [f"{romeo}\nwindow breaks?\nIt is the east.", juliet]
    for speaker, text in enumerate(texts):
        held = len(text) // 10
        own = data.groups == speaker
        assert said(data.x_train[own]) + ALPHABET[data.y_train[own][-1]] == text[:-held]
    assert len(data.x_test) == sum(len(text) // 10 - 2 for text in texts)
    assert data.y_test.tolist() == [ALPHABET.index(c) for text in texts for c in text[-(len(text) // 10) + 2 :]]
    prepared = data.prepare(data.x_train[3:7])
    assert prepared.shape == (4, 2 * 65)
    assert prepared.reshape(4, 2, 65).argmax(-1).tolist() == data.x_train[3:7].tolist()
    assert prepared.sum() == 8


def test_shakespeare_refuses_what_it_cannot_read_or_cut(folder):
    for options in ({"window": 0}, {"window": True}, {"shortest": 1.5}):
        with pytest.raises(InputError, match="must be a positive integer"):
            load("shakespeare", **options)
    with pytest.raises(InputError, match=r"Use window < 100, or shortest >= 1010"):
        load("shakespeare", window=100)
    write_play(folder, "ROMEO:\nHe jests at scars\n")
    with pytest.raises(InputError, match=r"nobody in 'shakespeare' says 1,000 characters"):
        load("shakespeare")
    write_play(folder, "ROMEO:\nHe jests at [scars]\n")
    with pytest.raises(InputError, match=r"has the character '\['"):
        load("shakespeare", window=1, shortest=20)
    write_play(folder, "It was a dark and stormy night.\n")
    with pytest.raises(InputError, match="begins with 'It was a dark"):
        load("shakespeare")
    write_play(folder, "ROMÉO:\n")
    with pytest.raises(InputError, match=r"cannot be read \(UnicodeDecodeError"):
        load("shakespeare")
    (folder / "tinyshakespeare.txt.gz").write_bytes(b"plain text")
    with pytest.raises(InputError, match="cannot be read"):
        load("shakespeare")
