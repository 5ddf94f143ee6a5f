"""What an error of Temporal says: one table, total over the statuses, with the texts of Temporal's server."""

from __future__ import annotations

import pytest
from temporalio.service import RPCStatusCode

from perdure.temporal.errors import REFUSALS, Refusal, classify_rpc_error
from perdure.testing.fake_service import build_rpc_error

S = RPCStatusCode
# The errors of go.temporal.io/server v1.29.1 for a request to a run: service/history/consts/const.go,
# service/history/api/updateworkflow/api.go, service/history/workflow/update, common/constants.go.
SERVER_ERRORS = [
    (S.FAILED_PRECONDITION, "Unable to perform workflow execution update due to Workflow Task in", "NOT_READY"),
    (S.FAILED_PRECONDITION, "Unable to perform workflow execution update due to unexpected", "NOT_READY"),
    (S.FAILED_PRECONDITION, "Workflow state is not ready to handle the request.", "NOT_READY"),
    (S.FAILED_PRECONDITION, "Workflow task is not scheduled yet.", "NOT_READY"),
    (S.FAILED_PRECONDITION, "Workflow execution closed before WorkflowTaskStarted event", "NOT_READY"),
    (S.FAILED_PRECONDITION, "The limit on the total number of distinct updates in this workflow has been", "NOT_READY"),
    (S.FAILED_PRECONDITION, "Namespace: default is active in cluster: east", "NO_ANSWER"),
    (S.FAILED_PRECONDITION, "Namespace has invalid state: Deleted. Must be Registered or Deprecated.", "SETUP"),
    (S.FAILED_PRECONDITION, "Client version 1.0 is not supported. Server supports client versions: >=2.0", "SETUP"),
    (S.RESOURCE_EXHAUSTED, "Workflow is busy.", "NOT_READY"),
    (S.RESOURCE_EXHAUSTED, "workflow operation can not be applied because workflow is closing", "NOT_READY"),
    (S.RESOURCE_EXHAUSTED, "limit on number of concurrent in-flight updates has been reached (10)", "NOT_READY"),
    (S.RESOURCE_EXHAUSTED, "limit on total payload size of in-flight updates has been reached", "NOT_READY"),
    (S.RESOURCE_EXHAUSTED, "consistent query buffer is full", "NOT_READY"),
    (S.RESOURCE_EXHAUSTED, "namespace rate limit exceeded", "NO_ANSWER"),
    (S.RESOURCE_EXHAUSTED, "Action per second limit exceeded.", "NO_ANSWER"),
    (S.UNAVAILABLE, "workflow update was aborted", "NOT_READY"),
    (S.UNAVAILABLE, "Workflow task state is inconsistent.", "NOT_READY"),
    (S.UNAVAILABLE, "unable to locate current workflow execution", "NO_ANSWER"),
    (S.UNAVAILABLE, "Namespace replication in Handover State.", "NO_ANSWER"),
    (S.UNAVAILABLE, "tcp connect error", "NO_ANSWER"),
    (S.DEADLINE_EXCEEDED, "context deadline exceeded", "NO_ANSWER"),
    (S.ABORTED, "Operation was aborted.", "NO_ANSWER"),
    (S.NOT_FOUND, "Namespace typo is not found.", "NO_NAMESPACE"),
    (S.NOT_FOUND, "workflow execution already completed", "CLOSED"),
    (S.NOT_FOUND, "workflow update was aborted by closing workflow", "CLOSED"),
    (S.NOT_FOUND, "stale reference: zombie workflow cannot be updated", "NOT_READY"),
    (S.NOT_FOUND, "workflow not found for ID: order-7", "NOT_FOUND"),
    (S.INVALID_ARGUMENT, "WorkflowId length exceeds limit.", "INVALID"),
    (S.PERMISSION_DENIED, "Request unauthorized.", "SETUP"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "text", "wanted"), SERVER_ERRORS, ids=[text[:60] for _, text, _ in SERVER_ERRORS])
def test_each_error_of_the_server_is_decided(status: RPCStatusCode, text: str, wanted: str) -> None:
    assert classify_rpc_error(build_rpc_error(status, text)) is Refusal[wanted]


def test_the_table_is_total() -> None:
    last = [(status, refusal) for status, text, refusal in REFUSALS if not text]
    assert sorted(status for status, _ in last) == sorted(set(RPCStatusCode) - {RPCStatusCode.OK})
    assert {refusal for *_, refusal in REFUSALS} == set(Refusal), "each case is reached"


def test_no_row_hides_another() -> None:
    for place, (status, text, _) in enumerate(REFUSALS):
        hiding = [row for row in REFUSALS[:place] if row[0] == status and row[1] in text]
        assert not hiding, f"{status.name} {text!r} is never reached"
