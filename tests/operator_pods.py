"""What Kubeflow's training operator sets in the pods of a job, and pods as network namespaces.

The variables are those of version 1.9.0: see pkg/controller.v1/tensorflow/tensorflow.go
and pkg/controller.v1/paddlepaddle/envvar.go.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import two_hosts
from two_hosts import FILES, command_inside

NAMESPACE = "team"

_REPLICAS = {"TFJob": "tfReplicaSpecs", "PaddleJob": "paddleReplicaSpecs"}
_CONTAINER = {"TFJob": "tensorflow", "PaddleJob": "paddle"}
_PORT = {"TFJob": "tfjob-port", "PaddleJob": "master"}


def workers(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the replica spec of a job that has workers alone."""
    (kind, spec), *others = job["spec"][_REPLICAS[job["kind"]]].items()
    assert (kind, others) == ("Worker", [])
    return spec


def container(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container in which the operator sets variables."""
    of_pod = workers(job)["template"]["spec"]["containers"]
    (found,) = [each for each in of_pod if each["name"] == _CONTAINER[job["kind"]]]
    return found


def port(job: Mapping[str, Any]) -> int:
    """Return the port by which the operator lets the pods find each other."""
    ports = container(job)["ports"]
    (found,) = [each["containerPort"] for each in ports if each["name"] == _PORT[job["kind"]]]
    return found


def pod(job: Mapping[str, Any], index: int) -> str:
    """Return the name of a worker's pod, which is its service's name as well."""
    return f"{job['metadata']['name']}-worker-{index}"


def variables(job: Mapping[str, Any], index: int, address: str) -> dict[str, str]:
    """Return the variables that the operator sets in a worker's container.

    Args:
      job: the manifest.
      index: the number of the worker.
      address: the address of its pod.
    """
    count = workers(job)["replicas"]
    if job["kind"] == "TFJob":
        names = [f"{pod(job, i)}.{NAMESPACE}.svc:{port(job)}" for i in range(count)]
        config = {
            "cluster": {"worker": names},
            "task": {"type": "worker", "index": index},
            "environment": "cloud",
        }
        return {"TF_CONFIG": json.dumps(config)}
    first = {"POD_IP_DUMMY": address} if index == 0 else {}
    return {
        "PYTHONUNBUFFERED": "1",
        "PADDLE_JOB_ID": job["metadata"]["name"],
        "PADDLE_NNODES": str(count),
        **first,
        "PADDLE_MASTER": f"{pod(job, 0) if index else address}:{port(job)}",
    }


@contextmanager
def pods(job: Mapping[str, Any]) -> Iterator[list[list[str]]]:
    """Yield the words that run a command in each of two pods; remove the pods at the end.

    A pod is a network namespace with a host name of its own. It knows its own service under a
    loopback address, as many a host does its own name, and those of the others as they are.
    """
    names = [pod(job, index) for index in range(len(two_hosts.ADDRESSES))]
    known = list(zip(two_hosts.ADDRESSES, names, strict=True))
    with two_hosts.hosts() as two:
        for namespace, own in zip(two.names, names, strict=True):
            lines = ["127.0.0.1 localhost"]
            for address, name in known:
                lines.append(f"{address} {name}")
                service = "127.0.1.1" if name == own else address
                lines.append(f"{service} {name}.{NAMESPACE}.svc")
            folder = FILES / namespace  # which goes with the namespace
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
        yield [
            command_inside(each, ["unshare", "--uts", "sh", "-c", _WITH_NAME, name])
            for each, name in zip(two.names, names, strict=True)
        ]


_WITH_NAME = 'hostname "$0" && exec "$@"'
