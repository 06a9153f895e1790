"""The catalog screen alone, without a run: what ``gputop catalog`` opens in a terminal."""

from __future__ import annotations

from textual.screen import Screen

from gputop.app.alone import AloneApp
from gputop.screens.catalog import CatalogScreen


class CatalogApp(AloneApp):
    """The catalog, and above it the planner or the estimator with one of its GPUs."""

    def get_default_screen(self) -> Screen[None]:
        return CatalogScreen()


def run_catalog() -> None:
    """Show it until the user leaves."""
    CatalogApp().run_here()
