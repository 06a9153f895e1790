"""Commands of the question "Will it fit?" and what they alone use."""
