"""Where values stopped being finite."""
