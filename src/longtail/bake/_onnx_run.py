"""Running an ONNX model on random inputs, to see what its outputs are and whether they changed.

onnxruntime runs it on the CPU; what that has no kernels for (bfloat16) runs in onnx's own, slow
reference. External data are read where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from longtail import _checks
from longtail._checks import InputError

Arrays = dict[str, Any]  # tensors by name
# Sizes to try where a dimension other than the first is left open: images, sequences.
_OPEN_SIZES = (32, 64, 224, 8, 1)
# How many scores to compare: each is held in float64, and several times over.
_MOST_SCORES = 4_000_000


def random_inputs(
    model: ModelProto, *, open_size: int, num_classes: int | None, seed: int = 0
) -> Arrays:
    """Something of the right type and shape for each input.

    Whole numbers are 0 or 1, which every vocabulary has. An open first dimension gets fewer rows
    where they are long, in the inputs or in the outputs.
    """
    random = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in constants]
    shapes = {info.name: _shape(info, open_size) for info in inputs}
    given = max((math.prod(shape[1:]) for shape in shapes.values()), default=1)
    made = [math.prod(_shape(info, open_size)[1:]) for info in model.graph.output]
    longest = max(*made, num_classes or 1, 1)  # a model need not say how wide its outputs are
    rows = min(256 if given <= 10_000 else 16, max(8, _MOST_SCORES // longest))
    found = {}
    for info in inputs:
        first, *rest = shapes[info.name] or (1,)
        shape = (rows if first == 0 else first, *rest) if shapes[info.name] else ()
        element = info.type.tensor_type.elem_type
        if element == TensorProto.STRING:
            found[info.name] = np.full(shape, "a", dtype=object)
            continue
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element))
        whole = dtype.kind in "iub"
        values = random.integers(2, size=shape) if whole else random.normal(size=shape)
        found[info.name] = np.asarray(values).astype(dtype)
    return found


def _shape(info: onnx.ValueInfoProto, open_size: int) -> list[int]:
    """Sizes of an input; 0 for an open first dimension."""
    sizes = []
    for place, dim in enumerate(info.type.tensor_type.shape.dim):
        known = dim.HasField("dim_value") and dim.dim_value > 0
        sizes.append(dim.dim_value if known else open_size if place else 0)
    return sizes


def _checked(model: ModelProto, inputs: Any, caller: str) -> Arrays:
    """The inputs that a caller gives, as arrays of the types that the model takes."""
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"{caller}: `inputs` of an ONNX model must be a dictionary, arrays by the name of each "
            f"input; got {type(inputs).__name__}."
        )
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    found = {name: np.asarray(values) for name, values in inputs.items()}
    for name, array in found.items():
        if types.get(name, TensorProto.STRING) in (TensorProto.STRING, TensorProto.UNDEFINED):
            continue
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(types[name]))
        if array.dtype != dtype:
            raise InputError(
                f"{caller}: the model takes {dtype.name} as {name!r}, but `inputs` has "
                f"{array.dtype.name}; convert it."
            )
    return found


class Runner:
    """Runs models on the same inputs.

    Args:
        model: whose inputs are made up.
        folder: where external data lie.
        inputs: the inputs by name, if the caller has better ones.
        num_classes: a size that no open dimension gets, lest it be taken for the classes; the
            more there are, the fewer rows are made up.
        caller: for messages.
    """

    def __init__(
        self,
        model: ModelProto,
        folder: Path | None,
        inputs: Mapping[str, Any] | None,
        *,
        num_classes: int | None,
        caller: str,
    ) -> None:
        self._runtime = _checks.require("onnxruntime", extra="onnx", caller=caller)
        self._folder, self._caller = folder, caller
        self._model, self._known = model, Arrays()
        self._reference, self._given = False, inputs is not None
        if inputs is not None:
            self.inputs = _checked(model, inputs, caller)
            self._try(model)
            return
        for size in (size for size in _OPEN_SIZES if size != num_classes):
            self.inputs = random_inputs(model, open_size=size, num_classes=num_classes)
            try:
                self._try(model)
                return
            except InputError as error:
                last = error
        raise last

    @property
    def rows(self) -> set[int]:
        """How long the inputs are along their first axis, which is that of the examples."""
        return {len(values) for values in self.inputs.values() if values.ndim}

    def _try(self, model: ModelProto) -> None:
        names = [output.name for output in model.graph.output]
        try:
            self.run(model, names)
            return
        except Exception as error:
            reason = " ".join(str(error).split())[:300].rstrip(".")
        self._reference = True
        try:
            self.run(model, names)
        except Exception as error:
            self._reference = False
            if self._given:
                raise InputError(
                    f"{self._caller}: the model can't be run on the given `inputs`: {reason}."
                ) from error
            raise InputError(
                f"{self._caller}: the model can't be run on made-up inputs, so the result could "
                f"not be checked ({reason}); pass real ones with inputs=..., arrays by the name "
                f"of each input (on the command line: --inputs FILE.npz)."
            ) from error

    def run(self, model: ModelProto, names: Sequence[str]) -> Arrays:
        """The named tensors, outputs of the model or not; of the first model each only once."""
        if model is not self._model:
            return self._run(model, names)
        missing = [name for name in names if name not in self._known]
        if missing:
            self._known |= self._run(model, missing)
        return {name: self._known[name] for name in names}

    def one_per_example(self, tensor: str) -> bool:
        """Whether each number of a tensor comes of one example: the last one's repeated shows."""
        before, inputs = self.run(self._model, [tensor])[tensor], self.inputs
        self.inputs = {
            name: np.repeat(array[-1:], len(array), axis=0) if array.ndim else array
            for name, array in inputs.items()
        }
        try:
            after = self._run(self._model, [tensor])[tensor]
        finally:
            self.inputs = inputs
        return bool(np.allclose(after, before[-1], 1e-3, 1e-5))

    def _run(self, model: ModelProto, names: Sequence[str]) -> Arrays:
        extended = ModelProto.FromString(model.SerializeToString())
        there = {output.name for output in model.graph.output}
        extended.graph.output.extend(
            helper.make_empty_tensor_value_info(name) for name in names if name not in there
        )
        if self._reference:
            return self._run_reference(extended, names)
        options = self._runtime.SessionOptions()
        options.log_severity_level = 4
        if self._folder is not None:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(self._folder.resolve())
            )
        session = self._runtime.InferenceSession(
            extended.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return dict(zip(names, session.run(list(names), self.inputs), strict=True))

    def _run_reference(self, model: ModelProto, names: Sequence[str]) -> Arrays:
        from onnx.reference import ReferenceEvaluator

        if self._folder is not None:
            onnx.external_data_helper.load_external_data_for_model(model, str(self._folder))
        evaluator = ReferenceEvaluator(model)
        with np.errstate(all="ignore"):
            return dict(zip(names, evaluator.run(list(names), self.inputs), strict=True))


def scores(value: Any) -> NDArray[Any] | None:
    """An output as floats, a list of dictionaries as their rows; None if it is neither."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return np.array([list(row.values()) for row in value])
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    return array if array.dtype.kind == "f" else None
