"""Libraries that a test needs, imported when it runs and not before: every worker collects every
test.
"""

from importlib.util import find_spec

import pytest


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark a test, or a module by ``pytestmark``, to be skipped where one of these libraries is
    missing.
    """
    missing = [name for name in names if not find_spec(name)]
    return pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)} here")
