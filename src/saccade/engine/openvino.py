"""A model on OpenVINO, without torch."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saccade.engine.engine import LOGITS, Arrays, available, check_installed
from saccade.engine.graph.examine import examine
from saccade.engine.native import bounded, check_ends, check_outputs
from saccade.errors import ModelError
from saccade.libraries import import_runtime
from saccade.wording import printable


class OpenVino:
    """A graph of ours, as ONNX or in OpenVINO's own format, on OpenVINO.

    The first shapes that come are compiled one by one, because a graph for one shape is faster than the one
    for all shapes, which answers the rest.

    Args:
        kept: How many shapes get a graph of their own.
        digest: The expected digest of the files; empty to skip the check.
        classes: How many the logits must have; 0 if unknown.
        outputs: The names that the graph's outputs must have.
        streams: How many threads will call it at once, each on its own core.
    """

    name = "openvino"

    def __init__(
        self,
        graph: Path,
        threads: int | None = None,
        kept: int = 2,
        digest: str = "",
        classes: int = 0,
        outputs: Sequence[str] = (LOGITS,),
        streams: int = 1,
    ) -> None:
        check_installed("openvino")
        self.core: Any = import_runtime("openvino").Core()
        self.settings = {
            **({"PERFORMANCE_HINT": "LATENCY"} if streams == 1 else {"NUM_STREAMS": streams}),
            "INFERENCE_NUM_THREADS": threads or (available() if streams == 1 else streams),
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self.where, self.classes = printable(graph), classes
        with examine(graph, digest) as paths:
            self.model: Any = bounded(
                lambda: self.core.read_model(*paths), f"OpenVINO cannot read {self.where}"
            )
        gives = [next(iter(each.get_names()), "") for each in self.model.outputs]
        self.outputs = check_ends(len(self.model.inputs), gives, outputs, self.where)
        self.kept = kept
        self.made: dict[tuple[int, ...], Any] = {}
        self.requests: dict[tuple[int, tuple[int, ...]], Any] = {}
        """By thread and size: threads that shared a request would wait for each other."""
        self._compiling = threading.Lock()

    def arrays(self, pixels: np.ndarray) -> Arrays:
        """Return all outputs of a batch by name."""
        found = bounded(
            lambda: self._infer(pixels),
            f"OpenVINO cannot run {self.where}",
            lambda: [request.cancel() for request in self.requests.values()],
        )
        return check_outputs(self.outputs, found, len(pixels), self.classes, self.where)

    def run(self, pixels: np.ndarray) -> np.ndarray:
        """Return the first output of a batch."""
        return self.arrays(pixels)[self.outputs[0]]

    def _infer(self, pixels: np.ndarray) -> list[np.ndarray]:
        wanted = self.model.inputs[0].get_element_type().to_dtype()
        if pixels.dtype != wanted:  # OpenVINO would convert them
            raise ModelError(f"{self.where} takes {wanted}; expected {pixels.dtype}; export it again")
        request = self._request(pixels.shape)
        request.infer([pixels], share_inputs=True, share_outputs=True)
        return [request.get_output_tensor(i).data.copy() for i in range(len(self.outputs))]

    def _request(self, size: tuple[int, ...]) -> Any:
        """Return this thread's request to the graph for a size, or to the one for all sizes."""
        with self._compiling:
            shape = size if size in self.made or len(self.made) < self.kept else ()
            if shape not in self.made:
                model = self.model.clone()
                if shape:
                    model.reshape(list(shape))
                self.made[shape] = self.core.compile_model(model, "CPU", self.settings)
            key = threading.get_ident(), shape
            if key not in self.requests:
                self.requests[key] = self.made[shape].create_infer_request()
            return self.requests[key]
