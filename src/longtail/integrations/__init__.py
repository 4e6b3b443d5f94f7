"""Other people's tools: thin adapters, each importing its framework only when used.

    huggingface  a loss for transformers' Trainer, and deferred re-weighting as its callback
    lightning    deferred re-weighting as a callback; balanced error and a run folder as a mixin
    skl2onnx     converters of the scikit-learn classifiers to ONNX
    skops        types that skops files of the scikit-learn classifiers need

Plain PyTorch and timm need no adapter: the losses take what `torch.nn.CrossEntropyLoss` takes,
class probabilities from Mixup included.
"""
