"""What stands between the command and its first frame: NumPy, pydantic and the findings take as
long to import as Textual does, and the feed brings them while the frame stands.
"""

import subprocess
import sys

FRAME = """
import sys
from gputop.app.application import GputopApp
from gputop.cli.happened.evidence import evidence_at
from gputop.panels import PANELS, imported
assert evidence_at(sys.argv[1]) is None
assert len([imported(panel.widget) for panel in PANELS]) > 4
print(*sorted({name.split(".")[0] for name in sys.modules} & {"numpy", "pydantic", "torch"}))
"""


def test_no_panel_waits_for_numpy(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    words = [sys.executable, "-c", FRAME, str(tmp_path)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "\n"
