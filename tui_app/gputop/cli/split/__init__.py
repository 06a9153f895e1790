"""Commands of the question "How to split it?" and what they alone use."""
