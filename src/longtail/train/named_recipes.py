"""The values of the recipes that have a name, and where they depend on the data set."""

from __future__ import annotations

from typing import Any

_PAPER: dict[str, Any] = {
    "model": "resnet32",
    "epochs": 200,
    "batch_size": 128,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "warmup_epochs": 5,
    "schedule": "steps",
    "milestones": ((160, 0.1), (180, 0.01)),
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2023, 0.1994, 0.2010),
    "crop_padding": 4,
    "flip": True,
}

# One network trained well: see docs/ingredients.md for what each part is.
_STRONG: dict[str, Any] = _PAPER | {
    "epochs": 400,
    "optimizer": "nesterov",
    "weight_decay": 5e-4,
    "schedule": "cosine",
    "milestones": (),
    "trivial_augment": True,
    "cutout": 16,
}

_LARGE: dict[str, Any] = {
    "model": "resnet50",
    "epochs": 90,
    "batch_size": 512,
    "optimizer": "sgd",
    "lr": 0.4,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "warmup_epochs": 5,
    "schedule": "cosine",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "flip": True,
    "image_size": 224,
}

RECIPES: dict[str, dict[str, Any]] = {
    # Settled by hand for the demo; see experiments.demo.
    "digits": {
        "model": "small-conv",
        "epochs": 30,
        "batch_size": 32,
        "optimizer": "nesterov",
        "lr": 0.05,
        "weight_decay": 5e-3,
        "warmup_epochs": 2,
        "schedule": "cosine",
        "mean": (0.305,),
        "std": (0.376,),
    },
    # The paper's appendix; what it leaves open is as usual for CIFAR.
    "paper": _PAPER,
    # The same with a weight decay that gives lower errors.
    "tuned": _PAPER | {"weight_decay": 5e-4},
    # The paper's authors' public code. Keras' l2(1e-4) has the gradient 2e-4 w. Images are
    # normalised, padded with zeros to 36 x 36 and cropped to 32 x 32; the 36 x 36 maps inside
    # the network come from its stem, whose 3 x 3 convolution pads by 3.
    "released": {
        "model": "resnet32-released",
        "batch_size": 128,
        "optimizer": "nesterov",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 2e-4,
        "decay": "not-norm",
        "schedule": "steps",
        "mean": (0.5,),
        "std": (1.0,),
        "crop_padding": 2,
        "crop_fill": "mean",
        "flip": True,
        "drop_last": True,
    },
    # Cao et al.'s code. Its cosine head goes with the method `ldam` only; see `make_spec`.
    "ldam": _PAPER
    | {"weight_decay": 2e-4, "warmup": "epoch", "milestones": ((160, 0.01), (180, 1e-4))},
    # A single network without teachers; and one that learns from them, which SAM did not help and
    # twice the epochs do. It goes with classes drawn equally often (softmax+over-sampling); what
    # is mixed in comes from all images alike.
    "strong": _STRONG | {"sam_rho": 0.1},
    "strong-student": _STRONG
    | {
        "epochs": 800,
        "cutout": 0,
        "cutmix": 0.5,
        "mix_partner": "uniform",
        "distill_weight": 0.8,
        "distill_temperature": 4.0,
        "distill_adjusted": False,
    },
    # The paper's appendix for photographs; its other columns are model=resnet152 and epochs=200.
    # The batch is that of all processes together.
    "imagenet-lt": _LARGE,
    "inaturalist": _LARGE | {"weight_decay": 1e-4},
}

# Names that stand for more than one way to train: what to type for them.
SEVERAL: dict[str, str] = {
    "strong-distilled": "teachers of recipe 'strong' and its like, then students of recipe "
    "'strong-student'. Type: "
    "longtail train --dataset NAME --method logit-adjusted --recipe strong --seeds 5 --out "
    "teachers; then longtail train --dataset NAME --method softmax+over-sampling --recipe "
    "strong-student --teachers teachers",
}

# Values that depend on the data set. Of `released` the training was fixed in steps, 119,136 of
# 96 an epoch and 119,196 of 84, with the exponential profile of ratio 100.
PER_DATASET: dict[str, dict[str, dict[str, Any]]] = {
    "strong": {"cifar10-lt": {"epochs": 500}, "cifar100-lt": {"sam_rho": 0.2}},
    "strong-student": {"cifar10-lt": {"epochs": 600}},
    "released": {
        "cifar10-lt": {
            "epochs": 1241,
            "warmup_epochs": 20,
            "milestones": ((604, 0.1), (926, 0.01), (1128, 0.001)),
        },
        "cifar100-lt": {
            "epochs": 1419,
            "warmup_epochs": 22,
            "milestones": ((691, 0.1), (1059, 0.01), (1290, 0.001)),
        },
    },
}
