"""`longtail data check`: what it prints, writes and returns."""

import json
from pathlib import Path

import pytest
from PIL import Image

from data_factory import write_folder, write_large, write_photos
from longtail.data import load

pytestmark = pytest.mark.usefixtures("no_data_folder")


def test_a_sound_data_set(cli):
    write_large(Path("set"))
    result = cli("data", "check", "set")
    assert result.code == 0
    assert result.err == ""
    first, second = result.out.splitlines()
    assert first == "set: 10 training, 3 validation, 3 test images, 3 classes"
    assert second.startswith("No problems (every image decoded, 0.")
    assert "No problems (headers only" in cli("data", "check", "set", "--quick").out


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
    assert result.code == 1
    assert result.err == ""
    lines = result.out.splitlines()
    assert lines[2] == "5 x missing: files that are not there"
    assert lines[3] == f"  {files[0]}: is not there"
    assert lines[6:9] == ["  and 2 more", "", "1 x format: files that are no images"]
    assert lines[9] == f"  {files[5]}: is no image"
    assert lines[-2:] == [
        "6 problems (11 of 16 files there, every one decoded).",
        "All of them: --out FILE or --json",
    ]
    quick = cli("data", "check", "set", "--workers", 1, "--quick").out
    assert "6 problems (11 of 16 files there, headers only)." in quick


def test_nothing_was_decoded_where_nothing_is(cli):
    for file in write_large(Path("set")).rglob("*.JPEG"):
        file.unlink()
    for quick in ((), ("--quick",)):
        result = cli("data", "check", "set", *quick)
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
    assert lines == [
        *(["missing", file, "is not there"] for file in files[:5]),
        ["format", files[5], "is no image"],
    ]
    again = cli("data", "check", "set", "--out", "problems.txt")
    assert again.code == 1
    assert "problems.txt exists; pass --force" in again.err
    assert again.out == ""
    for out in ("no/a.txt", "set"):
        refused = cli("data", "check", "set", "--out", out, "--force")
        assert (refused.code, refused.out) == (1, "")
        assert f"--out names {out}, which can't be a file there" in refused.err


def test_as_json(cli):
    files = broken_set()
    result = cli("data", "check", "set", "--json")
    assert result.code == 1
    document = json.loads(result.out)
    assert document["ok"] is False
    assert document["images"] == {"train": 10, "val": 3, "test": 3}
    assert document["counts"] == {"missing": 5, "format": 1}
    assert document["problems"][0] == {
        "kind": "missing",
        "where": files[0],
        "detail": "is not there",
    }
    assert document["seconds"] >= 0
    assert len(document["problems"]) == 6


def test_lists_apart_from_their_images(cli):
    write_large(Path("images"), "places-lt")
    Path("lists").mkdir()
    for file in Path("images").glob("*.txt"):
        file.rename(Path("lists") / file.name)
    assert cli("data", "check", "lists").code == 1
    assert cli("data", "check", "lists", "--root", "images").code == 0
    result = cli("data", "check", "lists/Places_LT_test.txt", "--root", "images")
    assert (result.code, result.out.splitlines()[0]) == (
        0,
        "Places_LT_test: 3 images, 3 classes",
    )
    by_name = cli("data", "check", "places-lt", "--data-dir", "lists", "--root", "images")
    assert by_name.code == 1
    assert "has 10 images; the train set of Places-LT has 62,500" in by_name.out


def test_data_read_as_a_whole_is_checked_by_reading(cli):
    result = cli("data", "check", "digits-lt")
    assert result.code == 0
    assert result.out == "digits-lt: 314 training, 600 test images, 10 classes\nNo problems.\n"
    document = json.loads(cli("data", "check", "digits-lt", "--json").out)
    assert (document["ok"], document["images"]) == (True, {"train": 314, "test": 600})
    assert cli("data", "freeze", "digits-lt", "--out", "d.frozen").code == 0
    assert cli("data", "check", "d.frozen").code == 0
    damaged = bytearray(Path("d.frozen").read_bytes())
    damaged[-20] ^= 1
    Path("d.frozen").write_bytes(damaged)
    result = cli("data", "check", "d.frozen")
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
        ([".", "--workers", "0"], 2, "--workers"),
        ([], 2, "missing argument 'NAME'"),
    ],
)
def test_bad_input(cli, arguments, code, message):
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
    assert max(map(len, result.out.splitlines())) <= 80
    assert cli("data", "check", "set/train.txt").code == 0
    Path("set/test.txt").write_text("./a/1.jpg 0\na/3.jpg 1\n")
    result = cli("data", "check", "set")
    assert result.code == 1
    assert "set/test.txt: 'a/1.jpg' is in the train set as well" in result.out


def test_options_that_a_folder_of_images_does_not_take(cli):
    write_photos(Path("set"), ["train/a/1.jpg", "test/a/2.jpg"])
    for option in ("--root", "--data-dir"):
        result = cli("data", "check", "set", option, ".")
        assert (result.code, result.out) == (1, "")
        assert option in result.err
        assert len(result.err.splitlines()) == 1


def test_a_folder_that_load_takes_is_checked_file_by_file(cli):
    write_photos(Path("set"), ["train/a/1.jpg", "train/b/3.jpg", "test/a/2.jpg", "test/b/4.jpg"],
                 size=(8, 8))  # fmt: skip
    assert cli("data", "check", "set").code == 0
    assert len(load("set").train) == 2


@pytest.mark.parametrize("options", [(), ("--quick",), ("--workers", "2")])
def test_images_of_several_sizes_are_told_of(cli, options):
    names = [f"{split}/{k}/{i}.png" for split in ("train", "test") for k in "ab" for i in range(20)]
    write_photos(Path("set"), names, size=(8, 8))
    one = cli("data", "check", "set", *options)
    assert one.code == 0
    assert "sizes" not in one.out
    write_photos(Path("set"), ["test/b/7.png"], size=(9, 9))
    several = cli("data", "check", "set", *options)
    text = " ".join(several.out.split())
    # Photographs have sizes of their own, and a recipe that crops trains on them.
    assert several.code == 0
    assert "The images have 2 sizes, 8 x 8 to 9 x 9 pixels (height x width): " in text
    assert "a recipe that crops, such as imagenet-lt; the others, describe and freeze" in text
    assert json.loads(cli("data", "check", "set", "--json").out)["num_sizes"] == 2
    assert "must be 8 x 8" in cli("data", "describe", "set").err


@pytest.mark.parametrize("options", [(), ("--quick",), ("--workers", "2")])
def test_one_image_in_colour_beside_a_grey_split_is_told_of(cli, options):
    for split in ("train", "test"):
        write_folder(Path("set", split), {"a": 20, "b": 20}, shape=(1, 6, 5))
    grey = cli("data", "check", "set", *options)
    assert "colour" not in grey.out
    Image.new("RGB", (5, 6)).save("set/train/b/7.png")
    odd = cli("data", "check", "set", *options)
    assert odd.code == 0  # a recipe that crops makes all of them colour
    text = " ".join(odd.out.split())
    assert "set/train/b/7.png is in colour, but all images of test are grey: training" in text
    assert "a recipe that crops, such as imagenet-lt; the others, describe and freeze" in text
    found = json.loads(cli("data", "check", "set", "--json").out)["colored"]
    assert found == {"train": "set/train/b/7.png"}
    # Where both have some, grey ones become colour, and nothing is refused.
    Image.new("RGB", (5, 6)).save("set/test/a/3.png")
    assert "in colour" not in cli("data", "check", "set", *options).out
    assert cli("data", "describe", "set").code == 0


def see_through(mode):
    """An image of a mode with transparency; of a palette, one colour of it."""
    image = Image.new(mode, (5, 6))
    if mode == "P":
        image.info["transparency"] = 0
    return image


@pytest.mark.parametrize("options", [(), ("--quick",), ("--workers", "2")])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_an_image_with_transparency_is_told_of(cli, options, mode):
    for split in ("train", "test"):
        write_folder(Path("set", split), {"a": 20, "b": 20}, shape=(3, 6, 5))
    assert "transparency" not in cli("data", "check", "set", *options).out
    see_through(mode).save("set/test/b/7.png")
    see_through(mode).save("set/test/b/8.png")
    odd = cli("data", "check", "set", *options)
    assert odd.code == 0  # a recipe that crops drops it
    assert max(map(len, odd.out.splitlines())) <= 80
    text = " ".join(odd.out.split())
    assert "set/test/b/7.png has transparency: training needs a recipe that crops, such as" in text
    assert "the others, describe and freeze take images without it, grey or RGB." in text
    found = json.loads(cli("data", "check", "set", *options, "--json").out)["transparent"]
    assert found == {"test": "set/test/b/7.png"}
    assert "set/test/b/7.png has pixels of the kind" in cli("data", "describe", "set").err


def test_grey_with_transparency_is_not_called_colour(cli):
    for split in ("train", "test"):
        write_folder(Path("set", split), {"a": 2, "b": 2}, shape=(1, 6, 5))
    see_through("LA").save("set/train/a/1.png")
    text = " ".join(cli("data", "check", "set").out.split())
    assert "set/train/a/1.png has transparency" in text
    assert "colour" not in text


def test_only_what_training_reads_is_told_of(cli):
    for split in ("train", "test"):
        write_folder(Path("set", split), {"a": 2, "b": 2}, shape=(3, 6, 5))
    write_photos(Path("set"), ["val/a/1.png", "val/b/1.png"], size=(5, 6))
    see_through("RGBA").save("set/val/a/1.png")
    assert "transparency" not in cli("data", "check", "set").out
    assert cli("data", "describe", "set").code == 0


def test_lists_may_hold_transparency(cli):
    """Images of lists always stay on disk, where it is dropped."""
    write_photos(Path("set"), ["a/1.png", "a/2.png"])
    see_through("RGBA").save("set/a/1.png")
    Path("set/train.txt").write_text("a/1.png 0\n")
    Path("set/test.txt").write_text("a/2.png 0\n")
    result = cli("data", "check", "set")
    assert (result.code, "transparency" in result.out) == (0, False)
    assert json.loads(cli("data", "check", "set", "--json").out)["transparent"] == {}


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
    result = cli("data", "check", "set")
    assert (result.code, result.err) == (0, "")
    assert "No problems" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    text = " ".join(result.out.split())
    said = f"The test set has no examples of class(es) {lacking}: its mean error will be that of"
    assert said in text
    document = json.loads(cli("data", "check", "set", "--json").out)
    assert (document["ok"], document["absent"]) == (True, {"test": [lacking]})


def save_turned(file, orientation):
    """An image whose EXIF data say how to show it; 1 is as it is stored."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (8, 6)).save(file, exif=exif)


@pytest.mark.parametrize("options", [(), ("--quick",), ("--workers", "2")])
@pytest.mark.parametrize("lists", [False, True])
def test_images_that_are_to_be_shown_turned_are_told_of(cli, options, lists):
    """No decoder here turns them, so their pixels train as they are stored."""
    names = [f"{split}/{k}/{i}.jpg" for split in ("train", "test") for k in "ab" for i in range(20)]
    write_photos(Path("set"), names, size=(8, 6))
    save_turned("set/train/a/1.jpg", 1)
    if lists:
        for split in ("train", "test"):
            lines = [f"{n} {'ab'.index(n.split('/')[1])}" for n in names if n.startswith(split)]
            Path("set", f"{split}.txt").write_text("\n".join(lines))
    before = cli("data", "check", "set", *options)
    assert (before.code, "EXIF" in before.out) == (0, False)
    save_turned("set/test/b/7.jpg", 6)
    save_turned("set/train/a/3.jpg", 3)
    result = cli("data", "check", "set", *options)
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    text = " ".join(result.out.split())
    said = "EXIF data ask to turn or mirror 2 images, such as set/test/b/7.jpg: training takes"
    assert said in text
    assert json.loads(cli("data", "check", "set", "--json", *options).out)["num_turned"] == 2


@pytest.mark.parametrize("damaged", [b"no such thing", b"II*\0", b"II*\0\x08\0\0\0\5\0"])
def test_damaged_exif_data_are_no_problem(cli, damaged):
    """Pillow raises or warns of them, but no pixel depends on them."""
    write_photos(Path("set"), ["train/a/1.jpg", "test/a/1.jpg"], size=(8, 6))
    image = Image.new("RGB", (8, 6))
    image.save("set/train/a/1.jpg", exif=b"Exif\0\0" + damaged, dpi=(72, 72))
    result = cli("data", "check", "set")
    assert (result.code, result.err, "EXIF" in result.out) == (0, "", False)
