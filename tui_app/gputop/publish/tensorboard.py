"""TensorBoard: event files with a scalar a figure, and the findings as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from gputop.publish.reading import Reading
from gputop.publish.words import FINDINGS, PAGE, findings_text

# Made at import by protobuf: no type checker sees what is in them.
_EVENT: Any = event_pb2
_SUMMARY: Any = summary_pb2
_TENSOR: Any = tensor_pb2
_SHAPE: Any = tensor_shape_pb2
_TYPES: Any = types_pb2


class TensorBoard:
    """Writes below ``FOLDER/RUN``."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer = EventFileWriter(str(folder))

    def publish(self, reading: Reading) -> None:
        """One event a point."""
        for point in reading.points:
            values = [
                _SUMMARY.Summary.Value(tag=name, simple_value=value)
                for name, value in sorted(point.values.items())
            ]
            event = _EVENT.Event(wall_time=point.t_ns / 1e9, step=point.step)
            event.summary.CopyFrom(_SUMMARY.Summary(value=values))
            self._writer.add_event(event)
        self._writer.flush()

    def finish(self, reading: Reading, report: str) -> None:
        """The findings as text and the page of the report beside the events."""
        self.publish(reading)
        event = _EVENT.Event(step=reading.steps)
        event.summary.CopyFrom(_SUMMARY.Summary(value=[_text(FINDINGS, findings_text(reading))]))
        self._writer.add_event(event)
        self._writer.close()
        (self._folder / PAGE).write_text(report, encoding="utf-8")


def _text(tag: str, text: str) -> Any:
    plugin = _SUMMARY.SummaryMetadata.PluginData(plugin_name="text")
    tensor = _TENSOR.TensorProto(
        dtype=_TYPES.DT_STRING,
        tensor_shape=_SHAPE.TensorShapeProto(dim=[_SHAPE.TensorShapeProto.Dim(size=1)]),
        string_val=[text.encode()],
    )
    metadata = _SUMMARY.SummaryMetadata(plugin_data=plugin)
    return _SUMMARY.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


def open(target: str, run: str) -> TensorBoard:
    """Write into a folder of the run's name below ``target``."""
    return TensorBoard(Path(target) / run)
