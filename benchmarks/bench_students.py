"""Cost of teachers on one GPU: an epoch of students with and without their answers.

    python benchmarks/bench_students.py --data cifar100-lt.parquet --teachers runs/cifar100-lt \\
        --record results/bench_students.json
    python benchmarks/bench_students.py --show results/bench_students.json

Students of the recipe `strong-student`, which share their images, and finished runs that teach
them. An epoch is timed with answers that are at hand already (zeros), and with teachers that
answer before its first step, as training does; the two take turns. Beside them, the time of the
answers alone.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch

import longtail
from bench_cohort import DEVICE, epoch_seconds, planners
from longtail import data
from longtail.runs import find_runs
from longtail.train.cuda_graphs import place
from longtail.train.loop import Training
from longtail.train.prefetch import Resident
from longtail.train.recipe import get_recipe
from longtail.train.teachers import Teachers, names_of

METHOD = "softmax+over-sampling"


def student_stepper(images, resident, recipe, teachers, *, students):
    def make():
        return Training(
            planners(images, range(students), recipe, METHOD),
            resident,
            precision="bfloat16",
            device=DEVICE,
            teachers=teachers,
        )

    return place(make, device=DEVICE)


def answer_seconds(teachers, images, times=5):
    """Wall time of the answers to as many images as an epoch has."""
    shape = images.image_shape
    pixels = torch.randn(4096, *shape, device=DEVICE).contiguous(memory_format=torch.channels_last)
    parts = pixels.repeat(-(-len(images) // 4096), 1, 1, 1)[: len(images)].split(4096)
    found = []
    how = {"enabled": True, "benchmark": True, "allow_tf32": False}  # as steppers have it
    with torch.no_grad(), torch.backends.cudnn.flags(**how):
        for _ in range(times + 1):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for part in parts:
                teachers(part)
            torch.cuda.synchronize()
            found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def measure(path, folder, *, count, students, epochs):
    pair = data.load(path)
    images, resident = pair.train, Resident(pair.train, DEVICE)
    runs = [run for run in find_runs(folder) if run.has_model and not names_of(run.spec)][:count]
    recipe = get_recipe("strong-student", dataset=pair.spec.name, image_seed=0)
    networks = Teachers(runs, recipe, resident, device=DEVICE)
    at_hand = torch.zeros(len(images), images.num_classes, device=DEVICE)
    rows = {}
    ways = {"answers at hand": at_hand, "teachers before": networks}
    steppers = {
        name: student_stepper(images, resident, recipe, teachers, students=students)
        for name, teachers in ways.items()
    }
    for _ in range(2):
        for name, one in steppers.items():
            rows.setdefault(name, []).extend(epoch_seconds([one], epochs))
    return {
        "data": {"name": pair.spec.name, "fingerprint": images.fingerprint},
        "device": torch.cuda.get_device_name(),
        "versions": {
            "longtail": longtail.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "students": students,
        "teachers": len(runs),
        "steps": len(steppers["answers at hand"].batch_sizes),
        "answers_s": answer_seconds(networks, images),
        "epoch_s": {
            name: {"median": statistics.median(v), "least": min(v), "most": max(v)}
            for name, v in rows.items()
        },
    }


def show(record):
    print(
        f"{record['device']}, torch {record['versions']['torch']}; {record['data']['name']}, "
        f"{record['students']} students of {record['teachers']} teachers, "
        f"{record['steps']} steps an epoch; the answers alone {record['answers_s']:.3f} s"
    )
    for name, row in record["epoch_s"].items():
        print(f"{name:20}{row['median']:8.3f} s {row['least']:8.3f} –{row['most']:6.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="a frozen file")
    parser.add_argument("--teachers", type=Path, help="a folder of finished runs on it")
    parser.add_argument("--count", type=int, default=7, help="of the teachers; the first ones")
    parser.add_argument("--students", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--record", type=Path, help="measure, and write the record here")
    parser.add_argument("--show", type=Path, help="print a record")
    given = parser.parse_args()
    if given.record:
        record = measure(
            given.data,
            given.teachers,
            count=given.count,
            students=given.students,
            epochs=given.epochs,
        )
        given.record.write_text(json.dumps(record, indent=1) + "\n")
        show(record)
    elif given.show:
        show(json.loads(given.show.read_text()))
    else:
        parser.error("give --record or --show")


if __name__ == "__main__":
    main()
