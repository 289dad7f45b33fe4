"""The model on OpenVINO, without torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from saccade.engine.engine import Logits, brief, check_installed
from saccade.engine.onnx import available
from saccade.errors import ModelError


class OpenVino:
    """A graph of ours, as ONNX or in OpenVINO's own format, on OpenVINO.

    It is compiled for the first sizes that come, each by itself: a graph for one size is faster than one for
    all of them, which answers the rest.

    Args:
        kept: how many sizes get a graph of their own.
    """

    name = "openvino"

    def __init__(self, graph: Path, threads: int | None = None, kept: int = 2) -> None:
        check_installed("openvino")
        os.environ.setdefault("OPENVINO_TELEMETRY", "0")
        import openvino

        self.core: Any = openvino.Core()
        self.settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads or available(),
            "INFERENCE_PRECISION_HINT": "f32",
        }
        try:
            self.model = self.core.read_model(os.fspath(graph))
        except Exception as error:  # its own classes have no common parent but this
            raise ModelError(f"OpenVINO cannot read {graph} ({brief(error)}); export it again") from error
        self.kept = kept
        self.made: dict[tuple[int, ...], Any] = {}

    def run(self, pixels: np.ndarray) -> Logits:
        """The logits of a batch."""
        shape = pixels.shape if pixels.shape in self.made or len(self.made) < self.kept else ()
        if shape not in self.made:
            model = self.model.clone()
            if shape:
                model.reshape(list(shape))
            self.made[shape] = self.core.compile_model(model, "CPU", self.settings).create_infer_request()
        request = self.made[shape]
        request.infer([pixels], share_inputs=True, share_outputs=True)
        return request.get_output_tensor(0).data.copy()
