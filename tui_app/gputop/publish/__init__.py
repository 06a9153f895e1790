"""A run's figures for other programs: read from its record, outside the training process.

``reading`` says what there is to publish, ``follow`` reads it again and again, ``table`` lists who
takes it; one module a publisher. A publisher's library is imported in this process only, when it is
asked for.
"""
