"""A run at each neighbour, read back by the neighbour's own reader."""

from __future__ import annotations

import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from analysis_support import T0, Builder
from e2e_support import gputop

from gputop.publish.follow import RecordReadings
from gputop.publish.reading import Points, Reading, read
from gputop_analysis.summary import summarise
from gputop_analysis.verdict import verdict
from gputop_probes.record.reader import RunRecord

GIB = 1 << 30


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """A run that has ended."""
    builder = recorded(tmp_path_factory.mktemp("run") / "recorded")
    builder.end(0)
    return builder.path


@pytest.fixture
def going_on(tmp_path) -> Builder:
    """The same run before its end."""
    return recorded(tmp_path / "recorded")


def reading_of(builder: Builder) -> Reading:
    """What is published at the time of the newest step."""
    record = builder.open()
    summary = summarise(record, now_ns=builder.clock[0])
    return read(record, summary, [], verdict(summary, []))


def recorded(path: Path) -> Builder:
    """Two ranks, one slow at its data without workers; a GPU."""
    builder = Builder(path)
    loader = {"site": "train.py:7", "num_workers": 0, "batch_size": 8}
    for rank in (0, 1):
        builder.hello(rank, world_size=2, dataloader=loader)
        builder.steps(120, rank, data=6.0, forward=3.0, backward=5.0, optimizer=1.0)
    for tick in range(5):
        builder.sample(
            "gpu",
            t_ns=builder.clock[0] - (5 - tick) * 10**8,
            index=0,
            util_pct=50.0,
            power_w=200.0,
            temperature_c=60.0,
            memory_used_bytes=4 * GIB,
            memory_total_bytes=8 * GIB,
        )
    return builder


def published(run_dir: Path, tmp_path: Path, *words: str, **environment: str):
    """``gputop publish`` of the run; it must have worked."""
    done = gputop("publish", str(run_dir), *words, tmp_path=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    return done


class Collector:
    """A web server that keeps what is posted to it."""

    def __init__(self, code: int = 200, body: bytes = b""):
        kept: list[tuple[str, bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kept.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.posts = kept
        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_prometheus_reads_the_textfile(run_dir, tmp_path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="extra prometheus")
    published(run_dir, tmp_path, "--prometheus", str(tmp_path / "gputop.prom"))
    text = (tmp_path / "gputop.prom").read_text()
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    steps = {sample.labels["rank"]: sample.value for sample in families["gputop_steps"].samples}
    assert steps == {"0": 120, "1": 120} and families["gputop_steps"].type == "counter"
    phases = {
        (sample.labels["rank"], sample.labels["phase"]): sample.value
        for sample in families["gputop_phase_seconds"].samples
    }
    assert phases["0", "data"] == pytest.approx(0.006, rel=0.05)
    found = {sample.labels["id"] for sample in families["gputop_finding"].samples}
    assert "IN02" in found


def test_a_textfile_keeps_nothing_that_is_no_longer_so(going_on, tmp_path) -> None:
    """A collector reads it again and again, long after the run."""
    parser = pytest.importorskip("prometheus_client.parser", reason="extra prometheus")
    from gputop.publish.prometheus import Prometheus

    publisher = Prometheus(str(tmp_path / "gputop.prom"))
    texts = []
    for ended in (False, True):
        if ended:
            going_on.end(0)
        publisher.publish(reading_of(going_on))
        texts.append((tmp_path / "gputop.prom").read_text())
    live, over = (
        {family.name: family for family in parser.text_string_to_metric_families(text)}
        for text in texts
    )
    (gpu,) = live["gputop_gpu_power_watts"].samples
    assert gpu.value == 200 and gpu.labels["hw_id"] == "box:0"
    assert live["gputop_run_active"].samples[0].value == 1
    gone = {"gputop_steps_per_second", "gputop_memory_bytes"}
    gone |= {name for name in live if name.startswith("gputop_gpu_")}
    assert live.keys() - over.keys() == gone
    assert over["gputop_run_active"].samples[0].value == 0


def test_prometheus_scrapes_a_live_port(run_dir) -> None:
    pytest.importorskip("prometheus_client", reason="extra prometheus")
    from urllib.request import urlopen

    from gputop.publish.prometheus import Prometheus

    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
        port = free.server_port
    publisher = Prometheus(f":{port}")
    publisher.publish(RecordReadings(RunRecord.open(run_dir)).last())
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert b'gputop_run_exit_code{run="recorded"} 0.0' in answer.read()


def test_a_collector_decodes_the_opentelemetry_metrics(going_on) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="extra otlp")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    from gputop.publish.otlp import Otlp

    with Collector() as collector:
        Otlp(collector.url, "recorded").publish(reading_of(going_on))
    request = ExportMetricsServiceRequest()
    path, body = collector.posts[-1]
    request.ParseFromString(body)
    assert path == "/v1/metrics"
    (resource,) = request.resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "gputop" and about["service.instance.id"] == "recorded"
    metrics = {one.name: one for scope in resource.scope_metrics for one in scope.metrics}
    (point,) = metrics["hw.gpu.utilization"].gauge.data_points
    labels = {one.key: one.value.string_value for one in point.attributes}
    assert point.as_double == 0.5 and metrics["hw.gpu.utilization"].unit == "1"
    assert labels["hw.type"] == "gpu" and labels["hw.id"] == "box:0"
    (memory,) = metrics["hw.gpu.memory.usage"].sum.data_points
    assert memory.as_double == 4 * GIB and not metrics["hw.gpu.memory.usage"].sum.is_monotonic
    assert metrics["gputop.step.count"].sum.is_monotonic
    assert len(metrics["gputop.phase.time"].gauge.data_points) == 20


def test_tensorboard_reads_every_step(run_dir, tmp_path) -> None:
    pytest.importorskip("tensorboard", reason="extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    published(run_dir, tmp_path, "--tensorboard", str(tmp_path / "tb"))
    events = EventAccumulator(str(tmp_path / "tb" / "recorded"))
    events.Reload()
    assert [event.step for event in events.Scalars("gputop/rank1/step_ms")] == list(range(120))
    data = [event.value for event in events.Scalars("gputop/rank0/data_ms")]
    assert sum(data) / 120 == pytest.approx(6, rel=0.05)
    (text,) = events.Tensors("gputop/findings")
    assert b"IN02" in text.tensor_proto.string_val[0]
    assert "IN02" in (tmp_path / "tb" / "recorded" / "gputop-report.html").read_text()


def test_mlflow_reads_its_store(run_dir, tmp_path, monkeypatch) -> None:
    pytest.importorskip("mlflow", reason="extra mlflow")
    store = (tmp_path / "store").as_uri()
    published(run_dir, tmp_path, "--mlflow", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store, registry_uri=store)
    experiment = client.get_experiment_by_name("gputop")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "recorded" and run.info.status == "FINISHED"
    summary = summarise(RunRecord.open(run_dir))
    assert (run.info.start_time, run.info.end_time) == (
        summary.started_ns // 10**6,
        summary.ended_ns // 10**6,
    )
    steps = client.get_metric_history(run.info.run_id, "gputop/rank0/step_ms")
    assert sorted(metric.step for metric in steps) == list(range(120))
    assert "num_workers=0" in run.data.tags["gputop.IN02"]
    assert [one.path for one in client.list_artifacts(run.info.run_id)] == ["gputop-report.html"]


def test_a_run_that_was_lost_is_not_finished_well(tmp_path) -> None:
    """Its recorder was killed with it: there is no exit code."""
    pytest.importorskip("mlflow", reason="extra mlflow")
    pytest.importorskip("wandb", reason="extra wandb")
    builder = Builder(tmp_path / "lost")
    builder.hello()
    builder.steps(60, forward=3.0, backward=5.0)
    store = (tmp_path / "store").as_uri()
    words = ("--mlflow", store, "--wandb", "team/toys")
    published(tmp_path / "lost", tmp_path, *words, WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    metas = [file.read_text() for file in (tmp_path / "store").rglob("meta.yaml")]
    assert [text for text in metas if "status: 4" in text], "FAILED"
    (file,) = tmp_path.rglob("*.wandb")
    records = list(wandb_records(file.read_bytes()))
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1]
    runs = [record.run for record in records if record.HasField("run")]
    assert {(run.entity, run.project) for run in runs} == {("team", "toys")}


def test_wandb_keeps_it_offline(run_dir, tmp_path) -> None:
    pytest.importorskip("wandb", reason="extra wandb")
    folder = tmp_path / "offline"
    folder.mkdir()
    published(run_dir, tmp_path, "--wandb", "toys", WANDB_MODE="offline", WANDB_DIR=str(folder))
    (file,) = folder.rglob("*.wandb")
    steps, tags = [], []
    for record in wandb_records(file.read_bytes()):
        for item in record.history.item:
            if [*item.nested_key, item.key][0] == "gputop/rank0/step_ms":
                steps.append(float(item.value_json))
        tags += list(record.run.tags)
    assert len(steps) == 120 and min(steps) > 5
    assert "gputop:IN02" in tags


def wandb_records(data: bytes):
    """The records of a run that W&B kept offline: blocks of 32 kB of pieces, as LevelDB writes its
    log.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(whole)
            whole = b""


def test_trackio_reads_its_project(run_dir, tmp_path) -> None:
    pytest.importorskip("trackio", reason="extra trackio")
    import sqlite3

    place = str(tmp_path / "trackio")
    done = published(run_dir, tmp_path, "--trackio", "toys", TRACKIO_DIR=place)
    assert "published to trackio: project toys" in done.stderr
    (file,) = (tmp_path / "trackio").glob("toys*.db")
    with sqlite3.connect(file) as base:
        rows = [json.loads(row[0]) for row in base.execute("select metrics from metrics")]
    assert sum("gputop/rank0/step_ms" in row for row in rows) == 120


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("--prometheus=:0", "prometheus_client"),
        ("--wandb=p", "wandb"),
        ("--otlp=u", "opentelemetry"),
    ],
)
def test_without_its_library_one_line_says_what_to_install(
    run_dir, words, missing, monkeypatch, capsys
) -> None:
    import importlib.util

    from gputop.cli import main

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name.startswith(missing) else real(name, *rest),
    )
    assert main(["publish", str(run_dir), words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "pip install" in said


@pytest.mark.parametrize(
    ("name", "target", "said"),
    [
        ("prometheus", "9400", "give :9400"),
        ("prometheus", "http://0.0.0.0:9400", "to listen on"),
        ("prometheus", ":99999", "from 1 to 65535"),
        ("prometheus", ".", "folder"),
        ("otlp", "localhost:4318", "as http://"),
        ("otlp", "ftp://collector", "as http://"),
        ("mlflow", "localhost:5000", "give http://localhost:5000"),
        ("mlflow", "http://", "no web address"),
        ("tensorboard", __file__, "give a folder"),
        ("wandb", "a#b", "ENTITY/PROJECT"),
        ("wandb", "a/b/c", "ENTITY/PROJECT"),
        ("notify", "htps://hooks.slack.com/x", "no web address"),
        ("notify", "http://[bad", "no web address"),
        ("notify", "no-such-command now", "no command 'no-such-command'"),
        ("notify", "'open", "no command"),
        ("notify", " ", "give a web address or a command"),
    ],
)
def test_a_target_that_cannot_work_is_refused_at_once(run_dir, capsys, name, target, said) -> None:
    """And not at the end of a training of days."""
    from gputop.cli import main
    from gputop.cli.errors import CliError
    from gputop.cli.slow.beside import options_of

    libraries = {"otlp": "opentelemetry", "prometheus": "prometheus_client", "notify": "json"}
    pytest.importorskip(libraries.get(name, name))
    assert main(["publish", str(run_dir), f"--{name}={target}"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and said in told and f"--{name}" in told
    words = ([], [target]) if name == "notify" else ([f"{name}={target}"], [])
    with pytest.raises(CliError, match="--"):
        options_of(*words)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("prometheus", ":9400"),
        ("prometheus", "[::1]:9400"),
        ("prometheus", "here/run.prom"),
        ("otlp", "https://collector.example/v1/metrics"),
        ("mlflow", "folder"),
        ("mlflow", "databricks"),
        ("mlflow", "https://user@server.example"),
        ("tensorboard", "none/yet"),
        ("wandb", "team/project"),
        ("trackio", "any thing"),
        ("notify", "HTTPS://hooks.slack.com/x"),
        ("notify", "cat -"),
    ],
)
def test_a_target_that_may_work_is_not(name, target) -> None:
    from gputop.publish.targets import refused

    assert refused(name, target) == ""


@pytest.mark.parametrize("target", ["sqlite:///runs.db", "mysql+pymysql://server/runs"])
def test_a_database_needs_what_opens_it(monkeypatch, target) -> None:
    import importlib.util

    from gputop.publish.targets import refused

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused("mlflow", target).endswith("pip install mlflow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "sqlalchemy")
    assert refused("mlflow", target) == ""


def test_phases_that_a_rank_never_had_are_no_charts(tmp_path) -> None:
    builder = Builder(tmp_path / "run")
    builder.hello()
    builder.steps(3, forward=3.0, backward=5.0)
    points = Points(RunRecord.open(tmp_path / "run"))
    (*_, last) = points.new()
    assert {name for name in last.values if name.endswith("_ms")} == {
        "gputop/rank0/step_ms",
        "gputop/rank0/forward_ms",
        "gputop/rank0/backward_ms",
    }
    builder.steps(1, forward=3.0, backward=5.0, eval=7.0)
    builder.steps(1, forward=3.0, backward=5.0)
    points.record.refresh()
    evaluated, after = [point.values["gputop/rank0/eval_ms"] for point in points.new()]
    assert evaluated > 6 and after == 0


def test_what_failed_is_not_said_to_be_written(run_dir, tmp_path) -> None:
    pytest.importorskip("prometheus_client", reason="extra prometheus")
    (tmp_path / "file").touch()
    words = (f"--prometheus={tmp_path}/run.prom", f"--prometheus={tmp_path}/file/run.prom")
    done = gputop("publish", str(run_dir), *words, tmp_path=tmp_path)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("wrote")] == [
        f"wrote {tmp_path}/run.prom"
    ]


def test_every_extra_that_is_named_exists() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 on")
    from gputop.publish.table import PUBLISHERS

    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    named = {entry.extra for entry in PUBLISHERS if entry.extra}
    assert named <= set(project["optional-dependencies"])


def test_a_dead_server_is_one_line_and_holds_up_no_other(run_dir, tmp_path) -> None:
    pytest.importorskip("prometheus_client", reason="extra prometheus")
    text = tmp_path / "gputop.prom"
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
        dead = f"http://127.0.0.1:{free.server_port}"
    done = gputop(
        "publish",
        str(run_dir),
        f"--notify={dead}",
        f"--prometheus={text}",
        tmp_path=tmp_path,
        env={"NO_PROXY": "127.0.0.1"},
    )
    assert done.returncode == 1 and text.exists()
    assert done.stderr.count("gputop: publish: --notify") == 1 and "Traceback" not in done.stderr


def test_points_are_given_once_and_thinned(run_dir) -> None:
    points = Points(RunRecord.open(run_dir))
    first = points.new()
    assert len(first) == 240 and points.new() == ()
    assert [point.t_ns for point in first] == sorted(point.t_ns for point in first)


def test_gpu_samples_stand_beside_the_steps_of_their_time(tmp_path) -> None:
    """Those before the first step and after the last are of none; each is given once."""
    builder = Builder(tmp_path / "run")
    builder.hello()
    points = Points(builder.open())

    def sample(util_pct: float, index: int = 0, memory: int = GIB) -> None:
        now_ns = builder.clock.get(0, T0)
        fields = {"index": index, "util_pct": util_pct, "power_w": float("nan")}
        builder.sample("gpu", t_ns=now_ns + 1000, memory_used_bytes=memory, **fields)

    def told() -> list[dict[str, float]]:
        points.record.refresh()
        new = [point.values for point in points.new()]
        return [{k: v for k, v in one.items() if "/gpu" in k} for one in new]

    sample(3.0)
    builder.steps(1, forward=5.0)
    sample(90.0)
    sample(70.0, memory=2 * GIB)
    sample(50.0, index=1, memory=-1)
    builder.steps(2, forward=5.0)
    sample(0.0)
    head = "gputop/box/gpu0"
    assert told() == [
        {},
        {f"{head}/util_pct": 80, f"{head}/memory_used_gib": 2, "gputop/box/gpu1/util_pct": 50},
        {},
    ]
    builder.steps(1, forward=5.0)
    assert told() == [{f"{head}/util_pct": 0, f"{head}/memory_used_gib": 1}]
