"""The report as one self-contained HTML page: no script, no network, charts as inline SVG, light
and dark.
"""

from gputop_analysis.html.page import as_html

__all__ = ["as_html"]
