"""How long `import saccade` and `saccade --help` take in fresh processes: the best of several."""

import subprocess
import sys
from pathlib import Path
from time import perf_counter

COMMANDS = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "import saccade": ([sys.executable, "-c", "import saccade"], 0.1),
    "saccade --help": ([str(Path(sys.executable).with_name("saccade")), "--help"], 0.35),
}


def best(command: list[str], times: int = 7) -> float:
    """Seconds of the fastest run."""
    found = []
    for _ in range(times):
        start = perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found.append(perf_counter() - start)
    return min(found)


def main() -> None:
    for name, (command, limit) in COMMANDS.items():
        told = "" if limit is None else f"(limit {limit} s)"
        print(f"{name:16} {best(command):.3f} s  {told}")


if __name__ == "__main__":
    main()
