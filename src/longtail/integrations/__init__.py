"""Other people's training loops: thin adapters, each importing its framework only when used.

    huggingface  a loss for transformers' Trainer, and deferred re-weighting as its callback
    lightning    deferred re-weighting as a callback; balanced error and a run folder as a mixin

Plain PyTorch and timm need no adapter: the losses take what `torch.nn.CrossEntropyLoss` takes,
class probabilities from Mixup included.
"""
