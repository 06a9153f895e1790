"""Commands of the question "Why is it slow?" and what they alone use."""
