"""Objects of Kubernetes as parsed YAML: their pods, and schemas of the custom resources that deploy/helm uses.

The schemas are written by hand, from the definitions of the Worker Controller (temporal-worker-controller-crds 0.27.1)
and of KEDA 2.22, and have the fields that the chart uses and no others: a field that the chart begins to use is looked
up there, and added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema

Object = dict[str, Any]


def _closed(required: str = "", **properties: Object) -> Object:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def _text(**rules: object) -> Object:
    return {"type": "string", **rules}


def _whole(minimum: int, **rules: object) -> Object:
    return {"type": "integer", "minimum": minimum, **rules}


_NAME = _text(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_HOST = _text(pattern=r"^[a-zA-Z0-9.-]+$")
_DURATION = _text(pattern=r"^([0-9]+(ms|s|m|h))+$")
_REFERENCE = _closed("name", name=_NAME)
_SECRET_KEY = _closed("name key", name=_text(minLength=1), key=_text(minLength=1))

# Values of a trigger's metadata are text, whatever they mean.
_TEMPORAL_TRIGGER = _closed(
    "endpoint taskQueue",
    endpoint=_text(pattern=r"^[^:]+:[0-9]+$"),
    namespace=_text(minLength=1),
    taskQueue=_text(minLength=1),
    targetQueueSize=_text(pattern=r"^[0-9]+$"),
    activationTargetQueueSize=_text(pattern=r"^[0-9]+$"),
    queueTypes=_text(pattern=r"^(workflow|activity|nexus)(,(workflow|activity|nexus))*$"),
    tlsServerName=_HOST,
)
_SCALED_OBJECT: Object = {
    "minReplicaCount": _whole(0),
    "maxReplicaCount": _whole(1),
    "pollingInterval": _whole(1),
    "cooldownPeriod": _whole(0),
    "advanced": _closed(
        horizontalPodAutoscalerConfig=_closed(
            behavior=_closed(scaleDown=_closed(stabilizationWindowSeconds=_whole(0, maximum=3600)))
        )
    ),
    "triggers": {
        "type": "array",
        "minItems": 1,
        "items": _closed(
            "type metadata", type={"const": "temporal"}, metadata=_TEMPORAL_TRIGGER, authenticationRef=_REFERENCE
        ),
    },
}
SPECS: dict[tuple[str, str], Object] = {
    ("keda.sh/v1alpha1", "ScaledObject"): _closed(
        "scaleTargetRef triggers", scaleTargetRef=_REFERENCE, **_SCALED_OBJECT
    ),
    ("keda.sh/v1alpha1", "TriggerAuthentication"): _closed(
        "secretTargetRef",
        secretTargetRef={
            "type": "array",
            "items": _closed(
                "parameter name key",
                parameter={"enum": ["apiKey", "ca", "cert", "key", "keyPassword"]},
                name=_text(minLength=1),
                key=_text(minLength=1),
            ),
        },
    ),
    ("temporal.io/v1alpha1", "Connection"): {
        **_closed(
            "hostPort",
            hostPort=_text(pattern=r"^[a-zA-Z0-9.-]+:[0-9]+$"),
            apiKeySecretRef=_SECRET_KEY,
            mutualTLSSecretRef=_REFERENCE,
            tls=_closed(serverName=_HOST),
        ),
        "not": {"required": ["mutualTLSSecretRef", "apiKeySecretRef"]},
    },
    ("temporal.io/v1alpha1", "WorkerDeployment"): _closed(
        "rollout sunset template workerOptions",
        replicas=_whole(0),
        minReadySeconds=_whole(0),
        template={"type": "object"},
        workerOptions=_closed(
            "connectionRef temporalNamespace", connectionRef=_REFERENCE, temporalNamespace=_text(minLength=1)
        ),
        rollout={
            **_closed(
                "strategy",
                strategy={"enum": ["Manual", "AllAtOnce", "Progressive"]},
                steps={
                    "type": "array",
                    "maxItems": 20,
                    "items": _closed(
                        "rampPercentage pauseDuration", rampPercentage=_whole(1, maximum=99), pauseDuration=_DURATION
                    ),
                },
                gate=_closed("workflowType", workflowType=_text(minLength=1), input={}),
            ),
            "if": {"properties": {"strategy": {"const": "Progressive"}}},
            "then": {"required": ["steps"], "properties": {"steps": {"minItems": 1}}},
        },
        sunset=_closed(scaledownDelay=_DURATION, deleteDelay=_DURATION),
    ),
    # The controller fills in what scales which version, where the template has an empty scaleTargetRef.
    ("temporal.io/v1alpha1", "WorkerResourceTemplate"): _closed(
        "workerDeploymentRef template",
        workerDeploymentRef=_REFERENCE,
        template=_closed(
            "apiVersion kind spec",
            apiVersion={"const": "keda.sh/v1alpha1"},
            kind={"const": "ScaledObject"},
            spec=_closed("scaleTargetRef triggers", scaleTargetRef={"const": {}}, **_SCALED_OBJECT),
        ),
    ),
}


def is_custom(resource: Object) -> bool:
    return (resource["apiVersion"], resource["kind"]) in SPECS


def check_custom(resource: Object) -> None:
    """Raises ``jsonschema.ValidationError``. The name is bounded as the Worker Controller's names are."""
    assert resource.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert len(resource["metadata"]["name"]) <= 47
    jsonschema.validate(resource["spec"], SPECS[resource["apiVersion"], resource["kind"]])


def find_pod(resource: Object) -> Object | None:
    """The template of a Deployment, Job, CronJob or WorkerDeployment, or the Pod itself: metadata and spec."""
    if resource["kind"] == "Pod":
        return resource
    spec = resource.get("spec", {})
    template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
    return template if template and resource["kind"] != "WorkerResourceTemplate" else None


def containers(pod: Object) -> Iterator[Object]:
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]
