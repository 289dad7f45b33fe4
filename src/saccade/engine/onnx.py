"""The model on ONNX Runtime, without torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from saccade.engine.engine import Logits, brief, check_installed
from saccade.errors import ModelError


class Onnx:
    """A graph of ours on ONNX Runtime.

    Args:
        fuse: let it rewrite the graph, which int8 needs; a float32 graph is drawn as it should run, and to
            look for more would double the time to load it.
    """

    name = "onnx"

    def __init__(self, graph: Path, threads: int | None = None, fuse: bool = False) -> None:
        check_installed("onnx")
        import onnxruntime

        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or available()
        # threads that wait awake between two operations save a third of the time, and end with the batch
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if not fuse:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # what goes wrong is raised as well
        try:
            self.session: Any = onnxruntime.InferenceSession(
                os.fspath(graph), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own classes have no common parent but this
            raise ModelError(f"ONNX Runtime cannot read {graph} ({brief(error)}); export it again") from error
        self.takes = self.session.get_inputs()[0].name

    def run(self, pixels: np.ndarray) -> Logits:
        """The logits of a batch."""
        return self.session.run(None, {self.takes: pixels})[0]


def available() -> int:
    """The processors that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) else len(os.sched_getaffinity(0))
