"""Commands of house-keeping."""
