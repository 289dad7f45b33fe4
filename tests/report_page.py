"""The report of a classification run."""

from saccade.report.run_page import write_report
from saccade.tasks import find_task


def report(folder):
    return write_report(folder, find_task())
