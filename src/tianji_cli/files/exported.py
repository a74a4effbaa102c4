"""Policies in ONNX files, which act without tianji, and the metadata of such files.

``tianji_algos.export`` traces the policy. The metadata are one JSON document, the property ``tianji`` of the
model.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.errors import UsageError, describe

Array = npt.NDArray[Any]
Act = Callable[[Sequence[Array]], list[Array]]
"""Function from the inputs of a file to its outputs, in their order."""
Document = Mapping[str, Any]
"""Metadata; each of its ``inputs`` and ``outputs`` has a ``name`` and a ``meaning``."""

METADATA: Final = "tianji"
SUFFIX: Final = ".onnx"
BATCH: Final = "batch"
CHECKED: Final = 1000
"""Number of observations by which a file is compared with its policy, on request."""
OPSET: Final = 17
"""Version of the operators, which onnxruntime reads from 1.13 on."""


def written(traced: Any, example: Sequence[Array], document: Document) -> bytes:
    """Translate a traced policy to ONNX, and return the contents of the file.

    Torch's newer translation, through ``torch.export``, cannot follow a network that reads on the host where
    episodes begin, as recurrent networks may.

    Args:
        example: inputs for some observations.

    Raises:
        UsageError: ONNX lacks an operation of the network.
    """
    import onnx  # noqa: PLC0415 - of an extra
    import torch  # noqa: PLC0415 - is slow to import

    names = [[port["name"] for port in document[side]] for side in ("inputs", "outputs")]
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                traced,
                tuple(map(torch.from_numpy, example)),
                buffer,  # type: ignore[arg-type]  # The older translation takes a buffer.
                input_names=names[0],
                output_names=names[1],
                dynamic_axes={name: {0: BATCH} for side in names for name in side},
                opset_version=OPSET,
                dynamo=False,
            )
        except Exception as cause:  # Torch raises many kinds, with no common base.
            raise UsageError(
                f"the network cannot be written as ONNX: {describe(cause)}; a network of what ONNX computes "
                "would be right"
            ) from cause
    model = onnx.load_model_from_string(buffer.getvalue())
    for ports, values in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        del values[:]  # The translation omits inputs that the network ignores.
        values.extend(map(_value_info, document[ports]))
    onnx.helper.set_model_props(model, {METADATA: json.dumps(document)})
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def load(content: bytes) -> Act:
    """Return a function that runs a file in onnxruntime on one core, as users of the file do."""
    import onnxruntime  # noqa: PLC0415 - of an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def act(inputs: Sequence[Array]) -> list[Array]:
        found: list[Array] = session.run(None, dict(zip(names, inputs, strict=True)))
        return found

    return act


def _value_info(port: Mapping[str, Any]) -> Any:
    import onnx  # noqa: PLC0415 - of an extra

    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(port["dtype"]))
    return onnx.helper.make_tensor_value_info(port["name"], kind, port["shape"], port["meaning"])


def require(library: str, what: str) -> None:
    """Check that a library is installed.

    Raises:
        UsageError: it is not; the message is the pip command.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime would report each use to its maker.
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as cause:
        raise UsageError(
            f"{what} needs {library}, which is not installed: pip install 'tianji[export]'"
        ) from cause


def port_document(name: str, dtype: np.dtype[Any], shape: Sequence[int], meaning: str) -> dict[str, Any]:
    """Describe an input or an output, ``[batch, *shape]``."""
    return {"name": name, "dtype": dtype.name, "shape": [BATCH, *shape], "meaning": meaning}
