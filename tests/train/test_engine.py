from dataclasses import replace

import numpy as np
import pytest
import torch

import data_factory
from longtail import ClassPrior, InputError
from longtail.data.digits import load_digits_lt
from longtail.data.images import ImageSet
from longtail.runs import Run
from longtail.runs.folder import RunError
from longtail.train.augment import normalize
from longtail.train.cuda_graphs import Stepper
from longtail.train.engine import evaluate, train, train_cohort, validate
from longtail.train.loop import Training, run_epoch
from longtail.train.methods import Method
from longtail.train.plan import Planner
from longtail.train.prefetch import Resident
from longtail.train.recipe import get_recipe, make_spec

DATA = load_digits_lt()
SHORT = {"epochs": 2}


def spec(method="softmax", seed=0, held_out=0.0, **overrides):
    return make_spec(
        replace(DATA.spec, held_out=held_out),
        method=method,
        recipe="digits",
        seed=seed,
        overrides={**SHORT, **overrides},
    )


def stepper(recipe, method="softmax", seed=0):
    device, labels = torch.device("cpu"), DATA.train.labels
    planner = Planner(
        recipe, Method.of(method), labels, np.arange(len(labels)), DATA.train.prior, seed=seed
    )
    return Stepper(lambda: Training([planner], Resident(DATA.train, device)), device=device)


def pixels(images, recipe):
    """The images as the network takes them, uncropped."""
    return normalize(
        torch.from_numpy(images.images),
        mean=recipe.mean,
        std=recipe.std,
        pixel_range=images.pixel_range,
    )


@pytest.mark.parametrize(
    ("drop_last", "sizes"), [(True, {4: [4, 4], 5: [5, 5]}), (False, {4: [4, 4, 2], 16: [10]})]
)
def test_the_last_batch_is_dropped_where_the_recipe_says_so(drop_last, sizes):
    labels = np.array([0] * 7 + [1] * 3)
    run = {"labels": labels, "kept": np.arange(10), "prior": ClassPrior.from_labels(labels)}

    def planner(size):
        recipe = get_recipe("digits", batch_size=size, drop_last=drop_last)
        return Planner(recipe, Method.of("softmax"), **run, seed=0)

    for size, expected in sizes.items():
        assert planner(size).batch_sizes == expected
        plan = planner(size).plan(0)
        assert (len(plan.rates), len(plan.images.rows)) == (len(expected), sum(expected))
    if drop_last:
        with pytest.raises(InputError, match="has 10 examples, fewer than one batch of 16"):
            planner(16)


def test_an_epoch_without_a_batch_is_refused_before_others_are_trained(tmp_path):
    """Under-sampling leaves 10 of the smallest class's size; the run before it has more."""
    few, methods = 10 * int(DATA.train.counts.min()), ("softmax", "softmax+under-sampling")
    specs = [spec(m, drop_last=True, batch_size=few + 1) for m in methods]
    with pytest.raises(InputError, match=f"has {few} examples, fewer than one batch of {few + 1}"):
        train_cohort(specs, DATA.train, root=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["small-conv", "resnet18"])
def test_a_batch_of_one_is_refused_where_batch_norm_can_not_take_it(tmp_path, model):
    """Of images of 32 x 32 the ImageNet networks make maps of one pixel."""
    images = ImageSet(
        data_factory.pixels(9, shape=(3, 32, 32)), np.repeat([0, 1], [5, 4]), ("a", "b")
    )

    def trained(batch_size, **others):
        one = spec(model=model, batch_size=batch_size, epochs=1, warmup_epochs=0, **others)
        validate([one], images)
        return one

    if model == "resnet18":
        advice = "the last batch of an epoch would have 1 of 9 .* set drop_last=true or another"
        with pytest.raises(InputError, match=advice):
            trained(4)
        with pytest.raises(
            InputError, match=r"a batch would have 1 of 9 .* set another batch_size"
        ):
            trained(1)
        trained(4, drop_last=True)
        trained(3)
    else:
        train(trained(4), images, root=tmp_path)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    specs = [spec(m, s) for m in ("softmax", "logit-adjusted") for s in (0, 1)]
    specs += [spec(seed=s, held_out=0.2) for s in (0, 1)]
    runs = train_cohort(specs, DATA.train, root=tmp_path_factory.mktemp("runs"))
    return [evaluate(run, DATA.test) for run in runs]


def test_neighbours_do_not_change_a_run(cohort, tmp_path):
    alone = train(spec("logit-adjusted", 1), DATA.train, root=tmp_path)
    together = cohort[3]
    assert alone.spec == together.spec
    for name, weight in alone.model().items():
        np.testing.assert_array_equal(weight, together.model()[name])


def test_global_randomness_does_not_reach_a_run(cohort, tmp_path):
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    again = train(spec(), DATA.train, root=tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(again.model()["fc.weight"], cohort[0].model()["fc.weight"])


def test_seeds_differ_and_methods_share_their_start():
    recipe = get_recipe("digits")
    softmax, other, another = (
        stepper(recipe, method, seed).training
        for method, seed in (("softmax", 0), ("logit-adjusted", 0), ("softmax", 1))
    )
    assert torch.equal(softmax.model.fc.weight, other.model.fc.weight)
    assert not torch.equal(softmax.model.fc.weight, another.model.fc.weight)


def test_training_lowers_the_loss_and_logs_it(tmp_path):
    run = train(spec(epochs=6), DATA.train, root=tmp_path)
    losses = [line["loss"] for line in run.log()]
    assert len(losses) == 6
    assert losses[-1] < 0.5 * losses[0]
    assert run.record["facts"]["parameters"] == 38_282


def test_the_first_step_is_sgd_on_the_family_loss(tmp_path):
    """One step by hand: same batch, same loss, plain gradient descent."""
    recipe = get_recipe(
        "digits", epochs=1, batch_size=10_000, optimizer="sgd", momentum=0.0, weight_decay=0.0
    )
    one = stepper(recipe, "logit-adjusted")
    team = one.training
    log_prior = torch.tensor(DATA.train.prior.log_probs)
    logits = team.model(pixels(DATA.train, recipe)).double() + log_prior
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(DATA.train.labels))
    (gradient,) = torch.autograd.grad(loss, team.model.fc.weight)
    rate = recipe.lr / 2  # the first of two warm-up steps
    expected = team.model.fc.weight.detach() - rate * gradient
    assert run_epoch([one], [0])[0] == pytest.approx([loss.item()], rel=1e-5)
    torch.testing.assert_close(team.model.fc.weight.detach(), expected, rtol=1e-4, atol=1e-6)


def test_held_out_examples_are_not_trained_on(cohort):
    held = cohort[4]
    assert "held-out" in held.splits
    counts = np.bincount(held.logits("held-out").target, minlength=10)
    assert counts.min() >= 1
    np.testing.assert_array_equal(held.prior.counts + counts, DATA.train.counts)
    assert held.data == cohort[0].data  # the same data set, before anything was held out


def test_evaluation_writes_the_networks_logits_once(cohort):
    run = cohort[0]
    logits, target, _ = run.logits("test")
    model = stepper(get_recipe("digits")).training.model
    model.load_state_dict({k: torch.tensor(np.array(v)) for k, v in run.model().items()})
    with torch.no_grad():
        expected = model.eval()(pixels(DATA.test, get_recipe("digits")))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(target, DATA.test.labels)
    stamp = (run.folder / "logits-test.safetensors").stat().st_mtime_ns
    evaluate(run, DATA.test)
    other = replace(DATA.test, labels=DATA.test.labels[::-1].copy())
    with pytest.raises(RunError, match="are of other images than the data are now"):
        evaluate(run, other)
    assert (run.folder / "logits-test.safetensors").stat().st_mtime_ns == stamp
    np.testing.assert_allclose(
        run.head.norms, np.linalg.norm(run.model()["fc.weight"], axis=1), rtol=1e-6
    )


def test_a_finished_run_is_not_trained_again(cohort):
    run = cohort[0]
    stamp = (run.folder / "model.safetensors").stat().st_mtime_ns
    again = train(run.spec, DATA.train, root=run.folder.parents[1])
    assert isinstance(again, Run)
    assert (run.folder / "model.safetensors").stat().st_mtime_ns == stamp
