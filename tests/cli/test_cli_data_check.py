"""`longtail data check`: its output, its files and its exit code."""

import json
from pathlib import Path

import pytest
from PIL import Image

from data_factory import write_folder, write_large, write_photos
from longtail.data import load

pytestmark = pytest.mark.usefixtures("no_data_folder")


def checked(cli, *options):
    """The output as one line, after it was held to the promises of a sound data set."""
    result = cli("data", "check", "set", *options)
    assert (result.code, result.err) == (0, "")
    assert "No problems" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    return " ".join(result.out.split())


def as_json(cli, *options):
    return json.loads(cli("data", "check", "set", *options, "--json").out)


def test_a_sound_data_set(cli):
    write_large(Path("set"))
    first, second = cli("data", "check", "set").out.splitlines()
    assert first == "set: 10 training, 3 validation, 3 test images, 3 classes"
    assert second.startswith("No problems (every image decoded, 0.")
    assert "No problems (headers only" in checked(cli, "--quick")


def broken_set():
    root = write_large(Path("set"))
    files = sorted((root / "train").rglob("*.JPEG"))
    for file in files[:5]:
        file.unlink()
    files[5].write_text("x")
    return [str(file) for file in files[:6]]


def test_problems_are_listed_and_the_exit_code_is_one(cli):
    files = broken_set()
    result = cli("data", "check", "set", "--workers", 1)
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[2:4] == ["5 x missing: files that are not there", f"  {files[0]}: is not there"]
    assert lines[6:9] == ["  and 2 more", "", "1 x format: files that are no images"]
    assert lines[9].startswith(f"  {files[5]}: is no image (PNG, ")
    assert lines[-2:] == [
        "6 problems (11 of 16 files there, every one decoded).",
        "All of them: --out FILE or --json",
    ]
    quick = cli("data", "check", "set", "--workers", 1, "--quick").out
    assert "6 problems (11 of 16 files there, headers only)." in quick
    document = as_json(cli)
    assert document["ok"] is False
    assert document["images"] == {"train": 10, "val": 3, "test": 3}
    assert document["counts"] == {"missing": 5, "format": 1}
    first = {"kind": "missing", "where": files[0], "detail": "is not there"}
    assert document["problems"][0] == first
    assert len(document["problems"]) == 6


def test_nothing_was_decoded_where_nothing_is(cli):
    for file in write_large(Path("set")).rglob("*.JPEG"):
        file.unlink()
    result = cli("data", "check", "set")
    assert result.code == 1
    assert "\n16 problems (none of the 16 files is there).\n" in result.out
    Path("empty.txt").write_text("")
    result = cli("data", "check", "empty.txt")
    assert result.out.splitlines()[-1] == "1 problem (no files listed)."


def test_all_problems_go_to_a_file(cli):
    files = broken_set()
    result = cli("data", "check", "set", "--workers", 1, "--out", "problems.txt")
    assert result.code == 1
    assert result.out.endswith("Written: problems.txt\n")
    lines = [line.split("\t") for line in Path("problems.txt").read_text().splitlines()]
    assert [line[:2] for line in lines] == [
        *(["missing", file] for file in files[:5]),
        ["format", files[5]],
    ]
    again = cli("data", "check", "set", "--out", "problems.txt")
    assert (again.code, again.out) == (1, "")
    assert "problems.txt exists; pass --force" in again.err
    for out in ("no/a.txt", "set"):
        refused = cli("data", "check", "set", "--out", out, "--force")
        assert (refused.code, refused.out) == (1, "")
        assert f"--out names {out}, which can't be a file there" in refused.err


def test_names_of_files_reach_nothing_as_commands(cli):
    """Escape codes, line ends and bytes that are no text, in names of damaged files."""
    write_photos(Path("set"), ["train/a/1.png", "test/a/1.png"])
    for name in (b"\x1b[2J.png", b"two\nlines.png", b"\xff.png"):
        with open(b"set/train/a/" + name, "w") as file:
            file.write("damaged")
    result = cli("data", "check", "set", "--out", "problems.txt")
    assert result.code == 1
    assert "set/train/a/\\x1b[2J.png: is no image" in result.out
    lines = Path("problems.txt").read_text().splitlines()
    assert len(lines) == 3
    assert sorted(line.split("\t")[1] for line in lines) == [
        "set/train/a/\\udcff.png",
        "set/train/a/\\x1b[2J.png",
        "set/train/a/two\\nlines.png",
    ]


def test_lists_apart_from_their_images(cli):
    write_large(Path("images"), "places-lt")
    Path("lists").mkdir()
    for file in Path("images").glob("*.txt"):
        file.rename(Path("lists") / file.name)
    assert cli("data", "check", "lists").code == 1
    assert cli("data", "check", "lists", "--root", "images").code == 0
    result = cli("data", "check", "lists/Places_LT_test.txt", "--root", "images")
    assert result.code == 0
    assert result.out.startswith("Places_LT_test: 3 images, 3 classes\n")
    by_name = cli("data", "check", "places-lt", "--data-dir", "lists", "--root", "images")
    assert by_name.code == 1
    assert "has 10 images; the train set of Places-LT has 62,500" in by_name.out


def test_data_read_as_a_whole_is_checked_by_reading(cli):
    result = cli("data", "check", "digits-lt")
    assert result.code == 0
    assert result.out == "digits-lt: 314 training, 600 test images, 10 classes\nNo problems.\n"
    document = json.loads(cli("data", "check", "digits-lt", "--json").out)
    assert (document["ok"], document["images"]) == (True, {"train": 314, "test": 600})
    assert cli("data", "freeze", "digits-lt", "--out", "d.parquet").code == 0
    assert cli("data", "check", "d.parquet").code == 0
    damaged = bytearray(Path("d.parquet").read_bytes())
    damaged[-20] ^= 1
    Path("d.parquet").write_bytes(damaged)
    result = cli("data", "check", "d.parquet")
    assert result.code == 1
    assert result.err.startswith("longtail: error: ")
    result = cli("data", "check", "digits-lt", "--quick", "--workers", 2)
    assert result.code == 1
    assert "digits-lt is read as a whole; --workers, --quick are for data sets of" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["mnist"], 1, "there is no data set, file or folder 'mnist'"),
        (["imagenet-lt"], 1, "where the lists of imagenet-lt are (ImageNet_LT_train.txt and"),
        (["imagenet-lt", "--data-dir", "."], 1, "there is no list of ImageNet-LT in ."),
        (["."], 1, "has neither lists (train.txt and test.txt"),
        (["set", "--root", "."], 1, "--root"),
        (["set", "--data-dir", "."], 1, "--data-dir"),
        ([".", "--workers", "0"], 2, "--workers"),
        ([], 2, "missing argument 'NAME'"),
    ],
)
def test_bad_input(cli, arguments, code, message):
    write_photos(Path("set"), ["train/a/1.jpg", "test/a/2.jpg"])
    result = cli("data", "check", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_a_leak_and_a_missing_test_set(cli):
    write_photos(Path("set"), ["a/1.jpg", "a/2.jpg", "a/3.jpg"])
    Path("set/train.txt").write_text("a/1.jpg 0\na/2.jpg 1\n")
    result = cli("data", "check", "set")
    assert result.code == 1
    assert "1 x split: no training set, or no test set, which training needs too" in result.out
    assert "  set: has no test set (test.txt), which training needs\n" in result.out
    assert cli("data", "check", "set/train.txt").code == 0
    Path("set/test.txt").write_text("./a/1.jpg 0\na/3.jpg 1\n")
    result = cli("data", "check", "set")
    assert result.code == 1
    assert "set/test.txt: 'a/1.jpg' is in the train set as well" in result.out


# What is no problem, but good to know.

HOW = pytest.mark.parametrize("options", [(), ("--quick",), ("--workers", "2")])


def write_set(*, shape=(3, 6, 5), each=20):
    for split in ("train", "test"):
        write_folder(Path("set", split), {"a": each, "b": each}, shape=shape)


@HOW
def test_images_of_several_sizes_are_told_of(cli, options):
    write_set()
    assert "sizes" not in checked(cli, *options)
    assert len(load("set").train) == 40
    write_photos(Path("set"), ["test/b/7.png"], size=(9, 9))
    text = checked(cli, *options)
    assert "The images have 2 sizes, 6 x 5 to 9 x 9 pixels (height x width): " in text
    assert (
        "training streams and crops them; recipes without image_size, describe and freeze" in text
    )
    assert as_json(cli)["sizes"] == [[6, 5], [9, 9]]
    assert "must be 6 x 5" in cli("data", "describe", "set").err


@HOW
def test_one_image_in_colour_beside_a_grey_split_is_told_of(cli, options):
    write_set(shape=(1, 6, 5))
    assert "colour" not in checked(cli, *options)
    Image.new("RGB", (5, 6)).save("set/train/b/7.png")
    text = checked(cli, *options)
    assert "set/train/b/7.png is in colour, but all images of test are grey: training" in text
    assert as_json(cli)["colored"] == {"train": "set/train/b/7.png"}
    # Where both have some, grey ones become colour, and nothing is refused.
    Image.new("RGB", (5, 6)).save("set/test/a/3.png")
    assert "in colour" not in checked(cli, *options)
    assert cli("data", "describe", "set").code == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_an_image_with_transparency_is_told_of(cli, mode):
    write_set(shape=(1 if mode == "LA" else 3, 6, 5), each=2)
    write_photos(Path("set"), ["val/a/1.png", "val/b/1.png"], size=(5, 6))
    odd = Image.new(mode, (5, 6))
    if mode == "P":
        odd.info["transparency"] = 0
    odd.save("set/val/a/1.png")  # which no training reads
    assert "transparency" not in checked(cli)
    odd.save("set/test/b/1.png")
    for options in ((), ("--quick",)):
        text = checked(cli, *options)
        said = "set/test/b/1.png has transparency: training streams and crops them"
        assert said in text
        assert "colour" not in text
        assert as_json(cli, *options)["transparent"]["test"] == "set/test/b/1.png"
    assert "set/test/b/1.png has pixels of the kind" in cli("data", "describe", "set").err
    for split in ("train", "test"):  # images of lists always stay on disk, where it is dropped
        Path(f"set/{split}.txt").write_text(f"{split}/b/1.png 0\n")
    assert "transparency" not in checked(cli)
    assert as_json(cli)["transparent"] == {}


@pytest.mark.parametrize("kind", ["tree", "lists"])
def test_a_test_set_that_lacks_classes_is_told_of(cli, kind):
    names = {"train": "abc", "test": "ac"}
    write_photos(Path("set"), [f"{s}/{k}/1.jpg" for s, classes in names.items() for k in classes])
    lacking = "b"
    if kind == "lists":
        lacking = "1"
        for split, classes in names.items():
            lines = [f"{split}/{k}/1.jpg {'abc'.index(k)}\n" for k in classes]
            Path("set", f"{split}.txt").write_text("".join(lines))
    said = f"The test set has no examples of class(es) {lacking}: its mean error will be that of"
    assert said in checked(cli)
    assert as_json(cli)["absent"] == {"test": [lacking]}


@HOW
@pytest.mark.parametrize("lists", [False, True])
def test_images_that_are_to_be_shown_turned_are_told_of(cli, options, lists):
    """No decoder here turns them, so their pixels train as they are stored."""
    names = [f"{split}/{k}/{i}.jpg" for split in ("train", "test") for k in "ab" for i in range(20)]
    write_photos(Path("set"), names, size=(8, 6))
    exif = Image.Exif()
    for file, orientation in (("train/a/1", 1), ("test/b/7", 6), ("train/a/3", 3)):
        exif[0x0112] = orientation  # 1 is as it is stored
        Image.new("RGB", (8, 6)).save(f"set/{file}.jpg", exif=exif)
    if lists:
        for split in ("train", "test"):
            lines = [f"{n} {'ab'.index(n.split('/')[1])}" for n in names if n.startswith(split)]
            Path("set", f"{split}.txt").write_text("\n".join(lines))
    said = "EXIF data ask to turn or mirror 2 images, such as set/test/b/7.jpg: training takes"
    assert said in checked(cli, *options)
    turned = ["set/test/b/7.jpg", "set/train/a/3.jpg"]
    assert as_json(cli, *options)["turned"] == turned


@pytest.mark.parametrize("damaged", [b"no such thing", b"II*\0", b"II*\0\x08\0\0\0\5\0"])
def test_damaged_exif_data_are_no_problem(cli, damaged):
    """Pillow raises or warns of them, but no pixel depends on them."""
    write_photos(Path("set"), ["train/a/1.jpg", "test/a/1.jpg"], size=(8, 6))
    image = Image.new("RGB", (8, 6))
    image.save("set/train/a/1.jpg", exif=b"Exif\0\0" + damaged, dpi=(72, 72))
    assert "EXIF" not in checked(cli)
