"""The main screen and the dialogs above it."""
