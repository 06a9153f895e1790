"""From a strategy to what one types: launchers' commands and files, and their checks."""
