"""For the Pythons that the tests start: what torch leaves behind is not searched for cycles once
more at the end.

A process that has imported torch spends a second of CPU on its own teardown, most of it in that
search. The callback is registered first, so it runs last: everything else that a program does at
its end comes before it.
"""

import atexit
import gc

atexit.register(gc.freeze)
