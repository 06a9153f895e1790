"""The report as one self-contained HTML page: no network, charts as inline SVG, light and dark, one
small script for crosshair, legend and sorting.
"""

from gputop_analysis.html.comparison_page import as_comparison_page
from gputop_analysis.html.page import as_html

__all__ = ["as_comparison_page", "as_html"]
