"""``python -m gputop_tracer``, or this file by its path from an interpreter without gputop."""

import importlib.util
import os
import sys

if not __package__:
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _folder]
    _spec = importlib.util.spec_from_file_location(
        "gputop_tracer", os.path.join(_folder, "__init__.py"), submodule_search_locations=[_folder]
    )
    assert _spec is not None and _spec.loader is not None
    sys.modules["gputop_tracer"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["gputop_tracer"])

if __name__ == "__main__":
    from gputop_tracer.main import main

    sys.exit(main())
