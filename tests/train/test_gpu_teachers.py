"""On a GPU: stacked teachers in bfloat16 against each by itself, and students of one cohort."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from longtail.runs import DataSpec
from longtail.train.engine import train_cohort
from longtail.train.prefetch import Resident
from longtail.train.recipe import get_recipe, make_spec
from longtail.train.teachers import Teachers, with_teachers
from train_factory import make_images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
IMAGES = make_images((300, 80, 20), side=32)
SHORT = {"model": "resnet20", "epochs": 3, "warmup_epochs": 1, "milestones": ((2, 0.1),)}


def spec(seed, **overrides):
    options = {"recipe": "tuned", "seed": seed, "overrides": SHORT | overrides}
    return make_spec(DataSpec("toy"), method="logit-adjusted", **options)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    specs = [spec(0), spec(1), spec(2, head="cosine", head_scale=16.0)]
    return train_cohort(specs, IMAGES, root=tmp_path_factory.mktemp("gpu"), device="cuda")


def test_stacked_teachers_answer_as_each_by_itself(teachers):
    recipe, shown = get_recipe("tuned"), torch.randn(300, 3, 32, 32, device="cuda")
    device, cpu = torch.device("cuda"), torch.device("cpu")
    together = Teachers(teachers, recipe, Resident(IMAGES, device), device=device)
    assert [size for _, size, *_ in together.groups] == [2, 1]
    alone = Teachers(teachers, recipe, Resident(IMAGES, cpu), device=cpu)
    found, expected = together(shown).cpu(), alone(shown.cpu())
    spread = expected.std()
    assert (found - expected).abs().mean() < 0.05 * spread  # bfloat16 against float32


def test_students_learn_what_they_learn_on_a_cpu(teachers, tmp_path):
    # Steps so small that rounding has no time to grow: the losses are those of the same images,
    # labels and teachers, which leave them only by the teachers' bfloat16.
    listening = {"distill_weight": 0.8, "distill_temperature": 2.0, "image_seed": 0, "lr": 1e-4}
    specs = [with_teachers(spec(seed, **listening), teachers) for seed in (5, 6)]
    specs = [replace(each, settings={**each.settings, "precision": "float32"}) for each in specs]
    losses = {}
    for device in ("cuda", "cpu"):
        options = {"root": tmp_path / device, "teachers": teachers, "device": device}
        runs = train_cohort(specs, IMAGES, **options)
        losses[device] = [[line["loss"] for line in run.log()] for run in runs]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=0.02)
    assert not np.allclose(losses["cpu"][0], losses["cpu"][1], rtol=0.02)  # or they'd be one run
