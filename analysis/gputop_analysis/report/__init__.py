"""The report of one run: as data with stable names, as text, as Markdown."""

from gputop_analysis.report.build import Extra, Report
from gputop_analysis.report.data import as_data, finite, report_data
from gputop_analysis.report.markdown import as_markdown
from gputop_analysis.report.text import as_text

__all__ = [
    "Extra",
    "Report",
    "as_data",
    "as_markdown",
    "as_text",
    "finite",
    "report_data",
]
