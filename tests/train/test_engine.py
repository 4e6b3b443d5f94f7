import gc
import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from longtail import InputError
from longtail.runs.folder import RunError
from longtail.train import engine
from longtail.train.engine import evaluate, train, train_cohort
from longtail.train.recipe import get_recipe
from train_factory import DIGITS as DATA
from train_factory import digits_spec, make_images, make_planner, make_stepper, uncropped

spec = partial(digits_spec, epochs=2)


def network(method="softmax", seed=0):
    planner = make_planner(get_recipe("digits"), DATA.train, method, seed)
    return make_stepper([planner], DATA.train).model


@pytest.mark.parametrize(
    ("drop_last", "size", "sizes"),
    [(True, 4, [4, 4]), (True, 5, [5, 5]), (False, 4, [4, 4, 2]), (False, 16, [10])],
)
def test_the_last_batch_is_dropped_where_the_recipe_says_so(drop_last, size, sizes):
    recipe = get_recipe("digits", batch_size=size, drop_last=drop_last)
    planner = make_planner(recipe, make_images((7, 2, 1)))
    plan = planner.plan(0)
    assert planner.batch_sizes == sizes
    assert (len(plan.rates), len(plan.images.rows)) == (len(sizes), sum(sizes))


def test_batches_that_can_not_be_made_are_refused():
    with pytest.raises(InputError, match="has 10 examples, fewer than one batch of 16"):
        make_planner(get_recipe("digits", batch_size=16, drop_last=True), make_images((7, 2, 1)))


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    specs = [spec(m, s) for m in ("softmax", "logit-adjusted") for s in (0, 1)]
    specs += [spec(seed=s, held_out=0.2) for s in (0, 1)]
    runs = train_cohort(specs, DATA.train, root=tmp_path_factory.mktemp("runs"))
    return [evaluate(run, DATA.test) for run in runs]


def test_neighbours_do_not_change_a_run(cohort, tmp_path):
    """Nor does randomness from elsewhere, which it leaves alone."""
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    alone, together = train(spec("logit-adjusted", 1), DATA.train, root=tmp_path), cohort[3]
    assert torch.equal(before, torch.random.get_rng_state())
    assert alone.spec == together.spec
    for name, weight in alone.model().items():
        np.testing.assert_array_equal(weight, together.model()[name])


def test_a_finished_run_is_freed_before_the_next_begins(tmp_path, monkeypatch):
    begun = []

    class Training(engine.Training):
        def __init__(self, *args, **options):
            gc.collect()
            assert [one for one in begun if one() is not None] == []
            begun.append(weakref.ref(self))
            super().__init__(*args, **options)

    monkeypatch.setattr(engine, "Training", Training)
    specs = [spec(seed=s, epochs=1, warmup_epochs=0) for s in (0, 1, 2)]
    train_cohort(specs, DATA.train, root=tmp_path)
    assert len(begun) == 3


def test_seeds_differ_and_methods_share_their_start():
    weights = [network(*run).fc.weight for run in (("softmax", 0), ("logit-adjusted", 0))]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], network("softmax", 1).fc.weight)


def test_held_out_examples_are_not_trained_on(cohort):
    held = cohort[4]
    assert "held-out" in held.splits
    counts = np.bincount(held.logits("held-out").target, minlength=10)
    assert counts.min() >= 1
    np.testing.assert_array_equal(held.prior.counts + counts, DATA.train.counts)
    assert held.data == cohort[0].data  # the same data set, before anything was held out


def test_evaluation_writes_the_networks_logits_once(cohort):
    run, model = cohort[0], network()
    logits, target, _ = run.logits("test")
    model.load_state_dict({k: torch.tensor(np.array(v)) for k, v in run.model().items()})
    with torch.no_grad():
        expected = model.eval()(uncropped(DATA.test, get_recipe("digits")))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(target, DATA.test.labels)
    stamp = (run.folder / "logits-test.safetensors").stat().st_mtime_ns
    evaluate(run, DATA.test)
    other = replace(DATA.test, labels=DATA.test.labels[::-1].copy())
    with pytest.raises(RunError, match="are of other images than the data are now"):
        evaluate(run, other)
    assert (run.folder / "logits-test.safetensors").stat().st_mtime_ns == stamp
    norms = np.linalg.norm(run.model()["fc.weight"], axis=1)
    np.testing.assert_allclose(run.head.norms, norms, rtol=1e-6)
