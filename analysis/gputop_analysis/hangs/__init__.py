"""A run that stands still: since when, who holds it up, and what that rank did."""
