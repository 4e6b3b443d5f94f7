"""Pretrained weights, the recipes for one's own images, and what these are told by the images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from data_factory import photo, pixels, write_folder, write_photos
from longtail import models
from longtail._checks import InputError
from longtail.data import ImageSet
from longtail.data.large import load_listed
from longtail.models.heads import head_factory
from longtail.models.resnet import DESIGNS, ResNet
from longtail.runs import DataSpec, Run, RunError, run_folders
from longtail.train import StoppedError, make_spec, read_weights, train_cohort, with_weights
from longtail.train.loop import run_epoch
from longtail.train.own_data import fits_memory, settle
from longtail.train.pretrained import Weights
from train_factory import make_streamed

pytestmark = pytest.mark.usefixtures("one_thread")


def network(name="resnet20", *, classes=7, seed=0):
    torch.manual_seed(seed)
    found = models.build(name, num_classes=classes, image_shape=(3, 32, 32))
    for layer in found.modules():  # as after some training
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_(std=0.1)
            layer.running_var.uniform_(0.5, 1.5)
    return found


def weights_file(path, **options):
    save_file(network(**options).state_dict(), path)
    return path


def small_set(examples=23, classes=3):
    labels = np.arange(examples) % classes
    names = tuple("abcdefghi"[:classes])
    return ImageSet(pixels(examples, shape=(3, 8, 8), seed=1), labels, names)


def spec(**overrides):
    values = {"epochs": 1, "model": "resnet20", "image_size": 0, "batch_size": 8, **overrides}
    return make_spec(
        DataSpec("small"), method="logit-adjusted", recipe="finetune", seed=3, overrides=values
    )


# Weights.


def test_weights_are_read_from_both_kinds_of_file(tmp_path):
    state = network().state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "a.pth")
    one, two = read_weights(tmp_path / "a.safetensors"), read_weights(tmp_path / "a.pth")
    assert one.fingerprint == two.fingerprint
    assert all(torch.equal(one.tensors[name], state[name]) for name in state)
    other = {**state, "fc.bias": state["fc.bias"] + 1e-3}
    assert Weights("other", other).fingerprint != one.fingerprint
    torch.save(network(), tmp_path / "module.pth")  # a pickle with code in it
    with pytest.raises(InputError, match="neither a safetensors file nor a torch file"):
        read_weights(tmp_path / "module.pth")


@pytest.mark.parametrize("name", DESIGNS)
def test_the_network_is_found_by_its_tensors(name):
    with torch.device("meta"):
        state = ResNet(
            DESIGNS[name], channels=3, head=head_factory("linear", num_classes=5)
        ).state_dict()
    assert Weights("file", state).find_model() == name
    without = {key: v for key, v in state.items() if "num_batches_tracked" not in key}
    assert Weights("file", without).find_model() == name


def test_weights_that_do_not_fit_name_the_first_tensor(tmp_path):
    state = network("resnet18").state_dict()
    short = {k: v for k, v in state.items() if not k.startswith("layer4.1.bn2")}
    with pytest.raises(InputError, match=r"does not fit resnet18; .* layer4.1.bn2.weight: absent"):
        Weights("file", short).find_model()
    with pytest.raises(InputError, match="has none of the tensors of"):
        Weights("file", {"encoder.weight": torch.zeros(2)}).find_model()
    weights = Weights("file", network().state_dict())
    other = with_weights(spec(model="resnet32"), weights)
    with pytest.raises(InputError, match="file does not fit resnet32"):
        train_cohort([other], small_set(), root=tmp_path / "runs", weights=weights)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("classes", [3, 7])
def test_a_run_starts_from_its_weights(tmp_path, classes):
    """With a rate of almost nothing it ends there, too; only a last layer that fits is taken."""
    weights = Weights("file", network(classes=classes).state_dict())
    made = with_weights(spec(lr=1e-12, weight_decay=0.0, freeze_backbone=True), weights)
    assert made.settings["weights"] == weights.fingerprint
    (run,) = train_cohort([made], small_set(), root=tmp_path, weights=weights)
    tensors = run.model()
    for name in tensors.keys() - {"fc.weight", "fc.bias"}:
        assert np.array_equal(tensors[name], weights.tensors[name].numpy()), name
    if classes == 3:
        assert np.allclose(tensors["fc.weight"], weights.tensors["fc.weight"].numpy(), atol=1e-6)
        assert weights.left_out(made, small_set()) == []
    else:
        assert "for 7 classes, is left out: small has 3" in weights.left_out(made, small_set())[0]


def test_runs_name_their_weights(tmp_path):
    weights = Weights("file", network().state_dict())
    other = Weights("other", network(seed=1).state_dict())
    plain, made = spec(), with_weights(spec(), weights)
    assert len({plain.hash8, made.hash8, with_weights(spec(), other).hash8}) == 3
    refused = ((made, None, RunError), (made, other, RunError), (plain, weights, InputError))
    for one, given, error in refused:
        with pytest.raises(error, match="weights"):
            train_cohort([one], small_set(), root=tmp_path, weights=given)
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_without_its_file(tmp_path):
    weights = Weights("file", network().state_dict())
    made = with_weights(spec(epochs=2), weights)
    (whole,) = train_cohort([made], small_set(), root=tmp_path / "whole", weights=weights)
    with pytest.raises(StoppedError):
        train_cohort([made], small_set(), root=tmp_path / "cut", weights=weights, stop=lambda: True)
    (run,) = train_cohort([made], small_set(), root=tmp_path / "cut")
    assert all(np.array_equal(run.model()[k], v) for k, v in whole.model().items())


def test_a_frozen_backbone_on_disk_stays(tmp_path):
    write_photos(tmp_path / "train", [f"{c}/{i}.jpg" for c in "ab" for i in range(6)])
    write_photos(tmp_path / "test", ["a/0.jpg", "b/0.jpg"])
    data = load_listed(tmp_path).train
    training = make_streamed(data, model="resnet20", batch_size=4, freeze_backbone=True)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    run_epoch([training], [0])
    after = training.model.state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"fc.weight", "fc.bias"}


# What follows from the images.


def test_small_images_of_one_size_fit_memory(tmp_path):
    for root, channels in ((tmp_path, 3), (tmp_path / "grey", 1)):
        for split in ("train", "test"):
            write_folder(root / split, {"a": 3, "b": 2}, shape=(channels, 20, 16))
        assert fits_memory(load_listed(root))
        assert fits_memory(load_listed(root), colour=True) == (channels == 3)
    photo(16, 20, mode="L").save(tmp_path / "test/a/0.png")
    assert fits_memory(load_listed(tmp_path), colour=True)  # grey among colour becomes colour
    photo(16, 20).save(tmp_path / "grey/test/a/0.png")
    assert not fits_memory(load_listed(tmp_path / "grey"))
    photo(16, 21).save(tmp_path / "test/a/other.png")
    assert not fits_memory(load_listed(tmp_path))


def test_the_values_follow_from_the_images(tmp_path):
    for split in ("train", "test"):
        for number, width in enumerate((300, 150, 170, 90, 40)):
            name = f"{'ab'[number % 2]}/{number}.jpg"
            write_photos(tmp_path / split, [name], size=(width, 200))
    train = load_listed(tmp_path).train
    found = settle("scratch", train, given={})
    assert (found["image_size"], found["model"], found["epochs"]) == (128, "resnet18", 200)
    given = {"image_size": 64, "epochs": 2}
    assert settle("finetune", train, given=given, pretrained=True) == {}
    assert settle("finetune", train, given={}, pretrained=True) == {"image_size": 128}
    with pytest.raises(InputError, match="`epochs` must be a whole number"):
        settle("scratch", train, given={"epochs": "many"})
    data = small_set(300)
    found = settle("scratch", data, given={"batch_size": 13})
    assert (found["image_size"], found["model"], found["drop_last"]) == (0, "small-conv", True)
    share = data.images / 255
    assert np.allclose(found["mean"], share.mean((0, 2, 3)), atol=0.005)
    assert np.allclose(found["std"], share.std((0, 2, 3)), atol=0.005)


# The two shortest commands.


def photographs(path, sizes=((48, 36), (40, 50), (64, 64))):
    for split, counts in (("train", (9, 5, 3)), ("test", (2, 2, 2))):
        for name, count, size in zip("abc", counts, sizes, strict=True):
            write_photos(path / split, [f"{name}/{i}.jpg" for i in range(count)], size=size)
    return "train", "--dataset", path, "--workers", 0, "--device", "cpu", "--set", "epochs=1"


def said_by(result):
    assert result.code == 0, result.err
    return " ".join(result.err.split())


def test_a_folder_of_photographs_from_scratch(cli):
    words = (*photographs(Path("photos")), "--method", "softmax", "--method", "logit-adjusted")
    said = said_by(cli(*words))
    assert "Chosen for photos: recipe scratch, model resnet32, image_size 32, mean" in said
    assert "--set flip=false for signs, digits or text" in said
    said_by(cli("evaluate", "runs"))
    said_by(cli("report", "runs/photos"))
    assert "Nothing to train: 2 runs finished already" in said_by(cli(*words))


def test_a_folder_of_photographs_from_weights(cli):
    words = (*photographs(Path("photos")), "--method", "logit-adjusted")
    weights_file("w.safetensors")
    said = said_by(cli(*words, "--weights", "w.safetensors"))
    assert "recipe finetune, model resnet20, image_size 32, mean [0.485,0.456,0.406]" in said
    assert "The last layer of w.safetensors, for 7 classes, is left out: photos has 3." in said
    (run,) = map(Run.open, run_folders("runs"))
    assert run.spec.settings["weights"] == read_weights("w.safetensors").fingerprint
    assert "give them: --weights FILE" in cli(*words, "--recipe", "finetune").err


def test_small_images_are_read_into_memory(cli):
    for split, count in (("train", 8), ("test", 3)):
        write_folder(Path("birds") / split, {"a": count, "b": 3}, shape=(3, 8, 8))
    words = ("train", "--dataset", "birds", "--method", "balanced", "--device", "cpu")
    said = said_by(cli(*words, "--set", "epochs=1", "--set", "flip=false"))
    assert "recipe scratch, model small-conv, images as they are" in said
    assert "mirrored" not in said
    (run,) = map(Run.open, run_folders("runs"))
    assert "list" not in run.spec.dataset.settings
