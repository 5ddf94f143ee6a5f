"""The Helm chart in deploy/: its values fit their schema and are used, and what it renders from several sets of values
passes Helm's linter and the schemas of Kubernetes, runs commands that exist, is hardened, and refers to what is there.
Needs no cluster; the tests marked ``slow`` need Helm, which is built once."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.docs.test_deploy import DEPLOY, LONGEST_DRAIN
from tests.docs.test_deploy_compose import documented
from tests.docs.test_docs import check_perdure
from tests.support.kubernetes import Object, check_custom, containers, find_pod, is_custom
from tests.support.validators import find_go_program, find_package_program, judge

SELECTING = (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector"))
CHART = DEPLOY / "helm/perdure"
SCHEMA: Object = yaml.safe_load((CHART / "values.schema.json").read_text())
DEFAULTS: Object = yaml.safe_load((CHART / "values.yaml").read_text())
SETS = sorted(path.stem.removesuffix("-values") for path in (CHART / "ci").iterdir())
KUBERNETES = ("1.29", "1.37")
"""The oldest version that the chart accepts, and the newest that the package of schemas has."""


def values_of(name: str) -> Object:
    """The values of a set, with the defaults."""
    return merged(DEFAULTS, yaml.safe_load((CHART / f"ci/{name}-values.yaml").read_text()))


def merged(under: Any, over: Any) -> Any:
    """As Helm does it: mappings by their keys, all else as a whole."""
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    return {name: merged(under.get(name), over.get(name, under.get(name))) for name in under | over}


def paths(schema: Object, values: Any, at: str = "") -> tuple[set[str], set[str]]:
    """The dotted names that a schema declares, and those of the values, down to where the schema says no more."""
    declared, present = {at}, {at}
    if "properties" in schema and isinstance(values, dict):
        for name in schema["properties"].keys() | values.keys():
            inner = f"{at}.{name}"
            if name not in schema["properties"]:
                present.add(inner)
            elif name not in values:
                declared.add(inner)
            else:
                below = paths(schema["properties"][name], values[name], inner)
                declared, present = declared | below[0], present | below[1]
    return declared, present


def test_the_schema_has_the_values_of_the_chart_and_no_others() -> None:
    declared, present = paths(SCHEMA, DEFAULTS)
    assert declared - {".global", ".rollout.gate"} == present


def test_every_value_is_used_and_no_other() -> None:
    """By its name, or with all of the mapping that it stands in."""
    text = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    used = set(re.findall(r"(?:\.Values|\$values)\.(\w+)", text))
    assert used == DEFAULTS.keys()
    as_a_whole = set(re.findall(r"toYaml (?:\.Values|\$values)\.(\w+)", text))
    for path in paths(SCHEMA, DEFAULTS)[1] - {""}:
        names = path[1:].split(".")
        assert names[0] in as_a_whole or re.search(rf"\.{names[-1]}\b", text), f"{path} is not used"


@pytest.mark.parametrize("name", SETS)
def test_the_sets_of_values_fit_the_schema(name: str) -> None:
    jsonschema.validate(values_of(name), SCHEMA)


WRONG: dict[str, Object] = {
    "a value that does not exist": {"replica": 3},
    "an address without a port": {"temporal": {"address": "temporal"}},
    "a digest that is none": {"image": {"digest": "latest"}},
    "an address as a host": {"web": {"hosts": ["https://agents.example.com"]}},
    "another mode": {"mode": "StatefulSet"},
    "a port that is text": {"networkPolicy": {"egressPorts": ["443"]}},
    "an age without its unit": {"gc": {"olderThan": "90"}},
    "a ramp of all": {"rollout": {"steps": [{"rampPercentage": 100, "pauseDuration": "1m"}]}},
    "a budget that lets no pod go": {"podDisruptionBudget": {"maxUnavailable": 0}},
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_refused(what: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(values_of("default"), WRONG[what]), SCHEMA)


def test_the_drain_of_the_chart_is_the_longest_of_the_defaults() -> None:
    assert DEFAULTS["drainSeconds"] == LONGEST_DRAIN


# ---
# What Helm renders.


@pytest.fixture(scope="session")
def helm() -> Path:
    return find_go_program("helm", "the Helm chart, as Helm renders it")


def run_helm(helm: Path, home: Path, *arguments: str) -> Any:
    env = {name: str(home / name.lower()) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    return judge(helm, *arguments, cwd=CHART, env={"HOME": str(home), **env})


def render(helm: Path, home: Path, name: str, *more: str) -> list[Object]:
    arguments = ("template", "shop", ".", "--namespace", "agents", "--values", f"ci/{name}-values.yaml", *more)
    done = run_helm(helm, home, *arguments)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def one(objects: list[Object], kind: str, *, web: bool = False) -> Object:
    (found,) = (each for each in objects if each["kind"] == kind and is_web(each) is web)
    return found


def is_web(each: Object) -> bool:
    """Whether it is of the pods of ``perdure serve``."""
    return bool(each["metadata"]["name"].endswith("-web"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_helm_and_kubernetes_accept_what_is_rendered(name: str, helm: Path, tmp_path: Path) -> None:
    linted = run_helm(helm, tmp_path, "lint", "--strict", ".", "--values", f"ci/{name}-values.yaml")
    assert linted.returncode == 0, linted.stdout + linted.stderr
    objects = render(helm, tmp_path, name)
    for each in filter(is_custom, objects):
        check_custom(each)
    builtin = [each for each in objects if not is_custom(each)]
    for each in objects:
        if each["kind"] == "WorkerDeployment":  # its pods, as those of a Deployment
            pod = each["spec"]["template"]
            spec = {"selector": {"matchLabels": pod["metadata"]["labels"]}, "template": pod}
            builtin.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec})
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(yaml.safe_dump_all(builtin))
    program = find_package_program("kubernetes-validate", "the Helm chart, by the schemas of Kubernetes")
    for version in KUBERNETES:
        judged = judge(program, "--strict", "-k", version, manifest, cwd=tmp_path)
        assert judged.returncode == 0, judged.stdout + judged.stderr
        assert "Couldn't find schema" not in judged.stdout + judged.stderr
        assert (judged.stdout + judged.stderr).count("passed for resource") == len(builtin)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_pods_run_commands_that_exist_and_refer_to_what_is_there(name: str, helm: Path, tmp_path: Path) -> None:
    objects = render(helm, tmp_path, name)
    values = values_of(name)
    config_maps = {each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap"}
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    assert len({(each["kind"], each["metadata"]["name"]) for each in objects}) == len(objects)
    pods = [(each, pod) for each in objects if (pod := find_pod(each))]
    assert pods
    for resource, pod in pods:
        spec = pod["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert len(volumes) == len(spec["volumes"])
        used = set()
        for container in containers(pod):
            check_perdure(container["args"], whole=True)
            names = [variable["name"] for variable in container["env"]]
            assert len(set(names)) == len(names)
            assert set(names) <= documented()
            mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(set(mounts)) == len(mounts)
            assert {"/tmp", "/var/lib/perdure"} <= set(mounts)
            used |= {mount["name"] for mount in container["volumeMounts"]}
            for variable in container["env"]:
                if variable["name"].endswith("_PATH"):
                    assert any(variable["value"].startswith(f"{mount}/") for mount in mounts)
        assert used == set(volumes)
        for volume in volumes.values():
            assert volume.keys() <= {"name", "emptyDir", "configMap", "secret"}, "allowed by the standard `restricted`"
            if "configMap" in volume:
                assert volume["configMap"]["name"] in config_maps | {values["agents"]["configMap"]}
        if resource["kind"] != "Job":  # the hook runs before the account is there
            assert spec["serviceAccountName"] in accounts | {"default"}
        selector = resource["spec"].get("selector", {}).get("matchLabels", {})
        assert selector.items() <= pod["metadata"]["labels"].items()


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_pods_fit_the_standard_restricted(name: str, helm: Path, tmp_path: Path) -> None:
    """Kubernetes' strictest security standard for pods; also nothing of the root filesystem is written, and no token of
    the cluster is in the pod."""
    for pod in filter(None, map(find_pod, render(helm, tmp_path, name))):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_workers_are_probed_selected_and_given_time_to_drain(name: str, helm: Path, tmp_path: Path) -> None:
    objects, values = render(helm, tmp_path, name), values_of(name)
    workers = one(objects, values["mode"])
    pod = find_pod(workers)
    assert pod is not None
    (container,) = containers(pod)
    drain = int(container["args"][container["args"].index("--drain") + 1])
    assert drain == values["drainSeconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == drain + 30
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] == 30, "what is not alive cannot drain"
    (port,) = container["ports"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["PERDURE_HEALTH_ADDRESS"] == f"0.0.0.0:{port['containerPort']}"
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: get["path"] for kind, get in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert all(get["port"] == port["name"] for get in probes.values())
    # The Worker Controller sets these itself; twice is an error of Kubernetes' server-side apply.
    assert ("TEMPORAL_ADDRESS" in variables) == (values["mode"] == "Deployment")
    labels = pod["metadata"]["labels"]
    for kind, field in SELECTING:
        for each in (one for one in objects if one["kind"] == kind and not is_web(one)):
            assert each["spec"][field]["matchLabels"].items() <= labels.items()
    assert ("replicas" in workers["spec"]) != values["autoscaling"]["enabled"]
    assert not any(key.startswith(("helm.sh", "app.kubernetes.io/version")) for key in labels), (
        "a new chart alone must not replace pods"
    )


@pytest.mark.slow
def test_the_api_is_probed_reached_and_kept(helm: Path, tmp_path: Path) -> None:
    objects = render(helm, tmp_path, "web")
    served = one(objects, "Deployment", web=True)
    pod = find_pod(served)
    assert pod is not None
    (container,) = containers(pod)
    (port,) = container["ports"]
    assert container["args"][:5] == ["serve", "--host", "0.0.0.0", "--port", str(port["containerPort"])]
    for kind in ("startup", "liveness", "readiness"):
        assert container[f"{kind}Probe"]["httpGet"]["port"] == "http"
    labels = pod["metadata"]["labels"]
    workers = find_pod(one(objects, "Deployment"))
    assert workers is not None
    service = one(objects, "Service", web=True)["spec"]
    selectors = [service["selector"]]
    selectors += [one(objects, kind, web=True)["spec"][field]["matchLabels"] for kind, field in SELECTING]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= workers["metadata"]["labels"].items(), "workers answer no requests"
    policy = one(objects, "NetworkPolicy", web=True)["spec"]
    assert policy["ingress"] == [{"ports": [{"port": port["containerPort"], "protocol": "TCP"}]}]
    assert [each["targetPort"] for each in service["ports"]] == [port["name"]]
    ingress = one(objects, "Ingress", web=True)["spec"]
    hosts = values_of("web")["web"]["hosts"]
    assert [rule["host"] for rule in ingress["rules"]] == hosts == ingress["tls"][0]["hosts"]
    assert [host for host in hosts if container["args"].count(host) != 1] == []
    for rule in ingress["rules"]:
        backend = rule["http"]["paths"][0]["backend"]["service"]
        assert backend == {"name": "shop-perdure-web", "port": {"name": service["ports"][0]["name"]}}
    assert not [each for each in render(helm, tmp_path, "default") if is_web(each)]


@pytest.mark.slow
def test_what_scales_finds_the_workers(helm: Path, tmp_path: Path) -> None:
    objects = render(helm, tmp_path, "keda")
    scaler, workers = one(objects, "ScaledObject"), one(objects, "Deployment")
    assert scaler["spec"]["scaleTargetRef"]["name"] == workers["metadata"]["name"]
    (trigger,) = scaler["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == one(objects, "TriggerAuthentication")["metadata"]["name"]
    objects = render(helm, tmp_path, "everything")
    template, workers = one(objects, "WorkerResourceTemplate"), one(objects, "WorkerDeployment")
    assert template["spec"]["workerDeploymentRef"]["name"] == workers["metadata"]["name"]
    connection = workers["spec"]["workerOptions"]["connectionRef"]["name"]
    assert connection == one(objects, "Connection")["metadata"]["name"]


@pytest.mark.slow
def test_a_change_replaces_what_must_be_replaced(helm: Path, tmp_path: Path) -> None:
    """Other agents: other pods. Another image: another migration, also where it is no hook: a Job cannot be changed."""
    before = render(helm, tmp_path, "keda")
    agents = render(helm, tmp_path, "keda", "--set", r"agents.files.agents\.py=x")
    digest = render(helm, tmp_path, "keda", "--set", f"image.digest=sha256:{'1' * 64}")

    def checksum(objects: list[Object]) -> str:
        return one(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/agents"]

    def job(objects: list[Object]) -> str:
        return one(objects, "Job")["metadata"]["name"]

    assert checksum(before) != checksum(agents)
    assert job(before) == job(agents)
    assert job(before) != job(digest)
    assert "annotations" not in one(before, "Job")["metadata"]
    hooks = one(render(helm, tmp_path, "default"), "Job")["metadata"]["annotations"]
    assert hooks["helm.sh/hook"] == "pre-install,pre-upgrade"


REFUSED = {
    "image.repository": ["--set", "image.repository="],
    "image.tag or image.digest": ["--set", "image.tag="],
    "image.tag and image.digest": ["--set", f"image.digest=sha256:{'1' * 64}"],
    "temporal.address": ["--set", "temporal.address="],
    "existingSecret": ["--set", "existingSecret="],
    "web.hosts": ["--set", "web.enabled=true"],
    "agents.files and agents.configMap": ["--set", "agents.configMap=x", "--set", "agents.files.a=b"],
    "additional properties 'replica' not allowed": ["--set", "replica=3"],
    "temporal.tls.enabled: KEDA": ["--set", "autoscaling.enabled=true", "--set", "temporal.tls.enabled=true"],
    "temporal.tls.enabled: KEDA and the Worker Controller": [
        *("--set", "mode=WorkerDeployment", "--set", "temporal.tls.enabled=true"),
    ],
    "temporal.apiKey.secretName and temporal.tls.secretName": [
        *("--set", "mode=WorkerDeployment", "--set", "temporal.apiKey.secretName=a"),
        *("--set", "temporal.tls.secretName=b"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("named", REFUSED)
def test_what_is_missing_is_named(named: str, helm: Path, tmp_path: Path) -> None:
    arguments = ("template", "shop", ".", "--values", "ci/default-values.yaml", *REFUSED[named])
    done = run_helm(helm, tmp_path, *arguments)
    assert done.returncode != 0
    assert named in done.stderr


@pytest.mark.slow
def test_names_stay_short(helm: Path, tmp_path: Path) -> None:
    arguments = ("template", "a" * 53, ".", "--values", "ci/everything-values.yaml")
    done = run_helm(helm, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    for each in filter(None, yaml.safe_load_all(done.stdout)):
        assert len(each["metadata"]["name"]) <= (52 if each["kind"] == "CronJob" else 63)
        assert not is_custom(each) or not check_custom(copy.deepcopy(each))
