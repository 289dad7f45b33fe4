"""`python -m saccade`, and the `saccade` command."""

from saccade.cli.app import main

if __name__ == "__main__":
    main()
