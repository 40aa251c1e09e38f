"""Alert rules and dashboards: promtool accepts them, their metrics exist, and each alert has its runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY

from api import metrics
from config.celery_metrics import _families
from inference_grpc.core.backend import BackendInfo
from inference_grpc.server.metrics import EngineMetrics
from portal.operations import reasons, thresholds
from tests.architecture.environment import ROOT

DOCKER = ROOT / "docker"
RULES = DOCKER / "prometheus-alerts.yml"
DASHBOARDS = sorted((DOCKER / "grafana").glob("*.json"))
NAME = re.compile(r"\b(?:gen_ai|gateway|engine|celery)_\w+")
# Not ours: written by Prometheus itself, or by the collector at scrape.
OTHERS = {"celery_queue_length"}


def exported() -> set[str]:
    """Names of all time series that the product writes."""
    assert metrics.DURATION  # registers the gateway's
    task = {"state": {"success": 1.0}, "bucket": {"1.0": 1.0}, "sum": {"": 1.0}, "success": {"": 1.0}}
    families = [
        *(family for family in REGISTRY.collect()),
        *EngineMetrics(lambda: BackendInfo(model="m", context_tokens=1, max_sequences=1)).collect(),
        *_families({"task": task}),
    ]
    names = set()
    for family in families:
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


def promtool(*arguments: str, folder: Path = ROOT) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions(path: Path) -> list[str]:
    if path.suffix == ".yml":
        groups = yaml.safe_load(path.read_text())["groups"]
        return [rule["expr"] for group in groups for rule in group["rules"]]
    return [target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]]


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(RULES))


def test_the_rules_pass_their_own_tests() -> None:
    promtool("test", "rules", "prometheus-alerts.test.yml", folder=DOCKER)


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    shutil.copy(DOCKER / "prometheus.yml", tmp_path)
    shutil.copy(RULES, tmp_path / "alerts.yml")
    promtool("check", "config", "prometheus.yml", folder=tmp_path)


@pytest.mark.parametrize("path", [RULES, *DASHBOARDS], ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_exists(path: Path) -> None:
    labels = {"gen_ai_request_model", "gen_ai_token_type", "gen_ai_operation_name"}
    asked = {name for text in expressions(path) for name in NAME.findall(re.sub(r'"[^"]*"', "", text))}
    assert asked - labels <= exported() | OTHERS


def test_the_operations_view_turns_red_where_an_alert_is_raised() -> None:
    rules = {
        rule["alert"]: rule["expr"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert rules["FirstTokenSlow"].endswith(f"> {thresholds.FIRST_TOKEN_P95_S:g}")
    assert rules["KvCacheFull"].endswith(f"> {thresholds.KV_CACHE_SHARE:g}")
    assert rules["CallsFail"].strip().endswith(f"> {thresholds.FAILED_SHARE:g}")
    assert rules["QueueGrows"].endswith(f"> {thresholds.QUEUE:g}")
    refused = re.search(r'code=~"([^"]+)"', rules["CallsRefusedByService"])
    assert refused is not None
    assert set(refused[1].split("|")) == reasons.OURS


def test_every_alert_has_a_runbook_of_its_name() -> None:
    headings = set(re.findall(r"^## (\w+)$", (ROOT / "docs/operations/alerts.md").read_text(), re.MULTILINE))
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert rule["alert"] in headings
                assert rule["annotations"]["runbook"].endswith(f"#{rule['alert'].lower()}")
                assert rule["labels"]["severity"] in ("page", "ticket")
