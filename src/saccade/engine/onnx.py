"""A model on ONNX Runtime, without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saccade.engine.engine import LOGITS, Arrays, available, check_installed
from saccade.engine.graph.examine import examine
from saccade.engine.native import bounded, check_ends, check_outputs
from saccade.libraries import import_runtime
from saccade.wording import printable


class Onnx:
    """A graph of ours on ONNX Runtime.

    Args:
        fuse: Let it rewrite the graph, which int8 needs; a float32 graph is drawn as it should run, and
            looking for more doubles the time to load it.
        digest: The expected digest of the file; empty to skip the check.
        classes: How many the logits must have; 0 if unknown.
        outputs: The names that the graph's outputs must have.
    """

    name = "onnx"

    def __init__(
        self,
        graph: Path,
        threads: int | None = None,
        fuse: bool = False,
        digest: str = "",
        classes: int = 0,
        outputs: Sequence[str] = (LOGITS,),
    ) -> None:
        check_installed("onnx")
        onnxruntime: Any = import_runtime("onnxruntime")
        onnxruntime.set_default_logger_severity(4)
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or available()
        # threads that wait awake between two operations save a third of the time, and end with the batch
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if not fuse:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # failures are raised as well
        self.where, self.classes, self._options = printable(graph), classes, onnxruntime.RunOptions
        with examine(graph, digest) as (path,):
            self.session: Any = bounded(
                lambda: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]),
                f"ONNX Runtime cannot read {self.where}",
            )
        takes, gives = self.session.get_inputs(), [each.name for each in self.session.get_outputs()]
        self.takes = takes[0].name if takes else ""
        self.outputs = check_ends(len(takes), gives, outputs, self.where)

    def arrays(self, pixels: np.ndarray) -> Arrays:
        """Return all outputs of a batch by name."""
        options = self._options()
        found = bounded(
            lambda: self.session.run(None, {self.takes: pixels}, options),
            f"ONNX Runtime cannot run {self.where}",
            lambda: setattr(options, "terminate", True),
        )
        return check_outputs(self.outputs, found, len(pixels), self.classes, self.where)

    def run(self, pixels: np.ndarray) -> np.ndarray:
        """Return the first output of a batch."""
        return self.arrays(pixels)[self.outputs[0]]
