"""`saccade doctor`: is this machine, and is this model file, in order?"""


def doctor() -> None:
    """x"""
