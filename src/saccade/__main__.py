"""`python -m saccade`, and the `saccade` command."""

import sys

from saccade.libraries import missing


def main() -> None:
    """Run the command line; name a package without which it cannot even start."""
    try:
        from saccade.cli.app import main as run
    except ModuleNotFoundError as error:
        if not (words := missing(error.name or "")):
            raise
        print(f"error: {words}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
