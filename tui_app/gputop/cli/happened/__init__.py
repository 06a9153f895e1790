"""Commands of the question "What happened?" and what they alone use."""
