"""Write docs/benchmarks.md and the tables of docs/sklearn.md from the records in results/."""

import json
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
SKLEARN = ROOT / "docs" / "sklearn.md"

INTRO = """# Benchmarks

How well and how fast it works. Repeat a benchmark with `python benchmarks/NAME.py`; it writes its
record to `results/`, and `python benchmarks/make_page.py` makes this page of them. The losses on a
GPU have [a page of their own](kernels.md).
"""


def record(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table(header, rows):
    """A table in Markdown: words to the left, numbers to the right."""
    columns = zip(*rows, strict=True)
    sides = ["---" if any(cell[:1].isalpha() for cell in cells) else "---:" for cells in columns]
    lines = [header, ["---", *sides[1:]], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def form(columns, cells):
    """A table of records: the header of each column, and the format of its cells."""
    if isinstance(cells, dict):
        cells = [{"name": name, **cell} for name, cell in cells.items()]
    rows = [[text.format(**cell) for text in columns.values()] for cell in cells]
    return table(list(columns), rows)


def gain(plain, other):
    """Mean gain in points with the half-width of its paired 95% t-interval."""
    values = 100 * (np.array(plain, dtype=float) - np.array(other, dtype=float))
    values = values[np.isfinite(values)]
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.1f} ± {half:.1f}".replace("-", "−")


KEYS = ("balanced accuracy", "accuracy", "macro-F1", "log-loss")


def estimators():
    found = record("bench_sklearn")
    parts = [
        "## scikit-learn estimators",
        f"Means over {len(found['sets'])} natural long tails (ten tables, two sets of short "
        f"texts; {found['splits']} splits of each), fixed before anything was measured; in percent "
        "but for the log-loss. Only τ was tuned. The last column is the lead of "
        '`LogitAdjustedClassifierCV` ("ours") in points of balanced accuracy, with its 95% '
        "interval over the sets and the number of sets on which it is ahead. `bench_sklearn.py`.",
    ]
    for base, cells in found["methods"].items():
        rows = []
        for method in next(iter(cells.values())):
            means = {
                key: np.array([np.mean(c[method][key]) for c in cells.values()]) for key in KEYS
            }
            ours = np.array([np.mean(c["ours"][KEYS[0]]) for c in cells.values()])
            ahead = f"({(ours > means[KEYS[0]]).sum()} of {len(ours)})"
            lead = "" if method == "ours" else f"{gain(ours, means[KEYS[0]])} {ahead}"
            scores = [f"{100 * means[key].mean():.1f}" for key in KEYS[:3]]
            rows.append([method, *scores, f"{means['log-loss'].mean():.2f}", lead])
        parts += [f"### {base}", table(["method", *KEYS, "lead of ours"], rows)]
    parts.append(worst(found["methods"]))
    rows = [[name, str(one["rows"]), str(len(one["class sizes"])), str(one["class sizes"][0]),
             str(one["class sizes"][-1])] for name, one in found["sets"].items()]  # fmt: skip
    parts += ["### The sets", table(["set", "rows", "classes", "largest", "smallest"], rows)]
    return parts


def aims():
    """Cost of balanced accuracy, of the forest: the table at the top of docs/sklearn.md."""
    cells = record("bench_sklearn")["methods"]["RandomForest"].values()
    rows = []
    for method, text in {
        "plain": "plain",
        "class weights": '`class_weight="balanced"`',
        "ours": "`LogitAdjustedClassifierCV`",
        "ours, f1_macro": 'the same, `scoring="f1_macro"`',
    }.items():
        means = [np.mean([np.mean(c[method][key]) for c in cells]) for key in KEYS]
        rows.append([text, *(f"{100 * mean:.1f}" for mean in means[:3]), f"{means[3]:.2f}"])
    return table(["random forest", *KEYS], rows)


def leads():
    """Points of balanced accuracy that ours gains, by estimator: the second table of the page."""
    rows = []
    for base, cells in record("bench_sklearn")["methods"].items():
        ours = np.array([np.mean(c["ours"][KEYS[0]]) for c in cells.values()])
        row = [base]
        for other in ("plain", "class weights", "over-sampling", "ours, reweight=1"):
            means = np.array([np.mean(c[other][KEYS[0]]) for c in cells.values()])
            row.append(f"{gain(ours, means)} ({(ours > means).sum()} of {len(ours)})")
        rows.append(row)
    header = ["lead over", "plain", "class weights", "over-sampling", "`reweight=1`"]
    return table(header, rows)


def worst(methods):
    """Sets on which ours does worse than plain."""
    said = []
    for base, cells in methods.items():
        for name, cell in cells.items():
            lead = 100 * np.subtract(cell["ours"][KEYS[0]], cell["plain"][KEYS[0]])
            if lead.mean() < 0:
                error = lead.std(ddof=1) / len(lead) ** 0.5
                said.append(f"{base} on {name} ({lead.mean():.1f} ± {error:.1f})")
    text = ", ".join(said).replace("-0", "−0").replace("(-", "(−")
    return (
        f"Ours is behind plain (points of balanced accuracy, standard error over the splits) for "
        f"{text}."
    )


def tuning():
    found = record("bench_tuning")
    columns = {
        "logits": "{examples:,} x {classes:,}",
        "dtype": "{dtype}",
        "class order": "{class_order}",
        "grid, s": "{wall_seconds[grid]:.2f}",
        "exact curve, s": "{wall_seconds[curve]:.3f}",
        "times faster": "{times_faster_wall:.0f}",
    }
    return [
        "## Exact tuning of tau",
        f"`tune_tau`'s whole curve against argmaxes on a grid of 101 taus "
        f"({found['machine']['device']}). `bench_tuning.py`.",
        form(columns, found["against_the_grid"]),
    ]


def adjusting():
    found = record("bench_adjust")
    columns = {
        "way": "{name}",
        "adjust, s": "{wall_seconds:.2f}",
        "one argmax, s": "{argmax_wall_seconds:.2f}",
        "ratio": "{times_one_argmax:.1f}",
        "memory, MB": "{peak_rss_anon_mb:.0f}",
    }
    examples, classes = found["shape"]
    return [
        "## Adjusting a large file",
        f"`longtail adjust` on {examples:,} x {classes:,} float32 logits in a memory-mapped file, "
        f"without writing ({found['machine']['device']}). `bench_adjust.py`.",
        form(columns, found["ways"]),
    ]


def samplers():
    found = record("bench_samplers")
    columns = {
        "rule": "{rule}",
        "classes": "{classes:,}",
        "build, s": "{build_seconds:.2f}",
        "an epoch, s": "{epoch_seconds:.2f}",
        "memory beyond the labels, MB": "{peak_mb_beyond_labels:.0f}",
    }
    return [
        "## Samplers",
        f"`ClassSampler` on {found['examples']:,} labels, imbalance ratio {found['imbalance']}, "
        "beside `torch.multinomial`, which WeightedRandomSampler draws with; processor seconds "
        f"({found['machine']['device']}). `bench_samplers.py`.",
        form(columns, found["cases"]),
    ]


def cohorts():
    found = record("bench_cohort")
    speed, short = found["speed"], found["short trainings"]
    plain = speed["plain eager"]["ms"]
    rows = [["plain eager loop, one run", f"{plain:.2f}", "1"]]
    rows += [
        [
            "one run, captured" if size == "1" else f"{size} runs together",
            f"{cell['ms']:.2f}",
            f"{plain / cell['ms']:.0f}",
        ]
        for size, cell in speed["cohorts"].items()
    ]
    gap, apart = short["difference"], found["agreement"]["difference"]
    mean = {name: 100 * np.mean(errors) for name, errors in short["errors"].items()}
    return [
        "## Training many runs on one GPU",
        f"ResNet-32 on CIFAR-10-LT, batches of 128, bfloat16: wall time of an epoch, divided by "
        f"its {speed['steps']} steps and its runs ({found['device']}, torch "
        f"{found['versions']['torch']}). The plain loop is eager torch. `bench_cohort.py`.",
        table(["", "ms a model-step", "times faster"], rows),
        f"Both loops train alike: in float32 their losses differ by at most {max(apart[:5]):.0e} "
        f"(relative) over five steps. After {short['recipe']['epochs']} epochs the balanced test "
        f"error over {len(short['errors']['graph'])} seeds is {mean['plain eager']:.1f}% and "
        f"{mean['graph']:.1f}%; the paired 95% interval of the difference is "
        f"[{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}] points.".replace("-", "−"),
        *real_cohort(),
        *ingredients(),
        *students(),
    ]


def ingredients():
    found = record("bench_ingredients")["ingredients"]
    rows = [
        [name, f"{row['ms']:.2f}", f"{row['ratio']:.2f}", f"{1000 * row['prepare_s']:.0f}"]
        for name, row in found["rows"].items()
    ]
    return [
        f"What [the ingredients of the strong recipe](ingredients.md) cost a cohort of "
        f"{found['runs']} runs there; the last column is for all batches of an epoch.",
        table(["", "ms a model-step", "times as long", "batches, ms"], rows),
    ]


def students():
    found = record("bench_students")
    rows = [[name, f"{1000 * row['median']:.0f}"] for name, row in found["epoch_s"].items()]
    rows.append(["the answers alone", f"{1000 * found['answers_s']:.0f}"])
    strong = [json.loads(path.read_text()) for path in (ROOT / "results/strong").glob("*/*.json")]
    ratios = {one["data"]: one["spec"]["dataset"]["imbalance_ratio"] for one in strong}
    ratio = ratios.get(found["data"]["fingerprint"])
    of_ratio = "" if ratio is None else f" with imbalance ratio {ratio:g}"
    return [
        f"An epoch of {found['students']} students of {found['teachers']} teachers on "
        f"{found['data']['name']}{of_ratio} there ({found['steps']} steps): with the teachers' "
        "answers at hand, computed before the first step, as training does, or aside during the "
        "epoch before, as it once did. `bench_students.py`.",
        table(["", "ms"], rows),
    ]


def real_cohort():
    found, heads = record("cohort_cifar100"), record("bench_embeddings_heads")
    names = {
        ("softmax", None): "softmax",
        ("posthoc-logit-adjusted", "fixed"): "softmax, logits adjusted afterwards (tau = 1)",
        ("logit-adjusted", None): "logit-adjusted loss",
    }
    errors = {(row["method"], row["tau_source"]): row["errors"] for row in found["rows"]}
    rows = [
        [name, f"{100 * np.mean(errors[key]):.1f} ± {100 * np.std(errors[key], ddof=1):.1f}"]
        for key, name in names.items()
    ]
    return [
        f"`{found['command']}` trained its {found['runs']} runs of the recipe "
        f"`{found['recipe']['name']}` together in {found['training_seconds']:.0f} s there:",
        table(["", "balanced test error, %"], rows),
        f"On features in a file, {heads['heads']} heads of {heads['classes']:,} classes on "
        f"{heads['rows']:,} x {heads['width']} numbers take {heads['seconds']:.0f} s for "
        f"{heads['epochs']} epochs together, reading and writing included "
        f"(`bench_embeddings.py --heads {heads['heads']}`).",
    ]


def coverage():
    found = record("bench_coverage")
    few = {True: "tau, few examples decide", False: "tau, enough decide"}
    groups = {"balanced error": found["error"], "change of it": found["change"]}
    groups |= {few[kind]: [o for o in found["tau"] if o["few"] is kind] for kind in (False, True)}
    held = [
        [name, *spans([one["held"] for one in cells]), str(sum(o["held"] < 0.9 for o in cells))]
        for name, cells in groups.items()
    ]
    ways = {"em": "EM, likelihood ratio", "bbse": "BBSE, χ²"}
    alarms = [
        [name, *spans([one["alarms"] for one in found["shift"] if one["way"] == way])]
        for way, name in ways.items()
    ]
    samples = {name: found[name][0]["samples"] for name in ("error", "tau", "shift")}
    errors = [*found["error"], *found["change"]]
    rarest = max(one["counts"][1] for one in errors if one["held"] < 0.9)
    return [
        "## Do the intervals hold what they promise?",
        f"How often nominal {100 * found['level']:.0f}% intervals hold the truth, in percent of "
        f"simulated samples ({samples['error']:,} of each setting for the errors, "
        f"{samples['tau']} for tau, whose best value is 1). Classes have 1 to 5,000 examples; "
        f"errors' intervals hold less than 90% only with a class of at most {rarest}. "
        "`TauResult.few_decide` tells the two rows of tau apart. `bench_coverage.py`.",
        table(["interval of", "settings", "mean", "least", "most", "below 90%"], held),
        "How often the test of `estimate_prior`, at the level of "
        f"{100 - 100 * found['level']:.0f}%, reports a shift in data without one, in percent of "
        f"{samples['shift']} samples of each setting.",
        table(["test", "settings", "mean", "least", "most"], alarms),
    ]


def sets():
    found = record("bench_conformal")
    names = {name: f" ({version})" for name, version in found["packages"].items() if version}
    parts = [
        "## Prediction sets",
        f"{100 * found['coverage']:.0f}% are asked for; thresholds come from long-tailed held-out "
        f"examples. Means over {found['splits']} splits, in percent: coverage as the mean over "
        "classes with two standard errors, that of the worst class, and the share of classes "
        'covered by less than half. "macro" is `PredictionSets()`. CIFAR-100-LT: a ResNet-32 after '
        "12 epochs. Beside: MAPIE"
        f"{names.get('mapie', '')} and TorchCP{names.get('torchcp', '')}. `bench_conformal.py`.",
    ]
    for data, cells in found["sets"].items():
        rows = [
            [
                name,
                f"{100 * cell['macro_coverage']:.1f} ± {200 * cell['standard_error']:.1f}",
                f"{100 * cell['worst_class']:.1f}",
                f"{100 * cell['classes_below_half']:.1f}",
                f"{cell['size']:.2f}",
            ]
            for name, cell in cells.items()
        ]
        header = [data, "macro coverage", "worst class", "below half", "classes in a set"]
        parts.append(table(header, rows))
    return parts


def spans(shares):
    """Count, mean, least and most in percent."""
    percent = 100 * np.array(shares)
    return [
        str(len(percent)),
        *(f"{value:.1f}" for value in (percent.mean(), percent.min(), percent.max())),
    ]


def large():
    found = record("bench_large")
    setting, loader = found["setting"], found["loader"]
    rows = []
    for name, cell in found["rates"].items():
        model, mode = name.split(", ")
        versus = found["against the bare loop"].get(mode, {}) if model == "resnet50" else {}
        bare = versus.get("bare loop", {}).get("images_per_second")
        rows.append(
            [
                name,
                f"{cell['images_per_second']:,.0f}",
                "" if bare is None else f"{bare:,.0f}",
                "" if bare is None else f"{versus['ratio']:.3f}",
            ]
        )
    cells = [
        [title, f"{kinds['softmax']:.1f}", f"{sum(kinds.values()):.1f}"]
        for title, kinds in found["hours"].items()
    ]
    return [
        "## Training on photographs",
        f"Images of {setting['pixels']} pixels in batches of {setting['batch']} on the device, "
        f"{setting['precision']}, channels last, fused SGD ({found['device']}, torch "
        f"{found['versions']['torch']}), by this trainer and a bare torch loop. `bench_large.py`.",
        table(["", "images a second", "bare loop", "ratio"], rows),
        f"From JPEG files of {loader['pixels'][0]} x {loader['pixels'][1]} pixels "
        f"({found['processor']}), {loader['workers']} workers decode and crop "
        f"{loader['images_per_second']:,.0f} images a second, "
        f"{loader['of what the GPU takes']:.2f} of what the GPU takes with ResNet-50; from files "
        f"to gradients, in a run of its own without compiling, it trains on "
        f"{found['from files']['images_per_second']:,.0f} a second.",
        "GPU hours of `python -m studies large` at these rates (ResNet-50 compiled, ResNet-152 "
        "not), if images come as fast; with the workers above ResNet-50 takes "
        f"{1 / loader['of what the GPU takes']:.1f} times as long:",
        table(["", "one run", "all runs of one seed"], cells),
    ]


def page():
    parts = [*estimators(), *tuning(), *coverage(), *sets(), *adjusting(), *samplers(), *cohorts()]
    parts += large()
    return "\n\n".join([INTRO.rstrip(), *parts]) + "\n"


def tables(text):
    """Renew the tables of docs/sklearn.md."""
    for make in (aims, leads):
        before, _, rest = text.partition(f"<!-- {make.__name__} -->\n")
        after = rest.partition("<!-- end -->")[2]
        text = f"{before}<!-- {make.__name__} -->\n{make()}\n<!-- end -->{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
    SKLEARN.write_text(tables(SKLEARN.read_text()))
    print(f"wrote {PAGE.relative_to(ROOT)} and the tables of {SKLEARN.relative_to(ROOT)}")
