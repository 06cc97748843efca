"""Values of installations that platform teams ask for, each rendered and validated by the tests."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

NAMESPACES = ["a", "b"]
"""Namespaces that these values name. They must exist."""
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
KUBERAY = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay"}}}
EVERYTHING: Object = {
    "nameOverride": "bi",
    "commonLabels": {"team": "vision"},
    "image": {"repository": "registry.example/operator", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"podSelector": {}}],
        "rayPods": {"enabled": True, "kuberayFrom": [KUBERAY], "egress": [{"to": [PROMETHEUS]}]},
    },
    "watchNamespaces": NAMESPACES,
    "defaults": {"image": "registry.example/pipeline:1", "requests": {"cpu": 0.1}},
    "serviceAccount": {"annotations": {"example.com/role": "operator"}},
    "workers": 4,
    "logging": {"format": "plain", "level": "DEBUG"},
    "metrics": {
        "podMonitor": {"enabled": True, "labels": {"team": "sre"}},
        "prometheusRule": {"enabled": True, "labels": {"team": "sre"}},
        "dashboard": {"enabled": True, "labels": {"team": "sre"}},
    },
    "resources": {"limits": {"memory": "1Gi", "cpu": 1}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "arch", "operator": "In", "values": ["amd64"]}]}
                ]
            }
        }
    },
    "priorityClassName": "system-cluster-critical",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
}
ZONES = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "batch-inference-operator"}},
}
PRIVATE_CA = {
    "extraVolumes": [{"name": "ca", "configMap": {"name": "private-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/private-ca", "readOnly": True}],
    "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/etc/ssl/private-ca/ca.crt"}],
}
TOKEN_KEY = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {
        "name": '{{ include "bi.fullname" . }}-own',
        "namespace": "{{ .Release.Namespace }}",
    },
    "stringData": {"key": "0123456789abcdef0123456789abcdef"},
}
PATCHES = [{"groups": ["*"], "pod": {"metadata": {"annotations": {"a": "b"}}}}]
BATCH_SERVICE: Object = {"enabled": True, "path": "s3://bucket/batches", "keysSecret": "keys"}
SETS: dict[str, Object] = {
    "default": {},
    "everything": EVERYTHING,
    "existing objects": {
        "crds": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "own"},
        "tokenKey": {"existingSecret": "own"},
    },
    "long name": {"fullnameOverride": "a" * 70},
    "long chart name": {"nameOverride": "a" * 70},
    "empty extras": {"resources": {}, "livenessProbe": {}, "readinessProbe": {}},
    "one replica": {"replicas": 1},
    "five replicas": {"replicas": 5},
    "replicas over zones": {"replicas": 3, "topologySpreadConstraints": [ZONES]},
    "labels of a team": {"commonLabels": {"team": "vision"}, "podLabels": {"team": "7"}},
    "mirror": {"global": {"imageRegistry": "mirror.example"}},
    "mirror in a folder": {"global": {"imageRegistry": "mirror.example/hub/"}},
    "image digest": {"image": {"digest": "sha256:" + "4f5c" * 16}},
    "pull secrets": {"imagePullSecrets": [{"name": "registry"}]},
    "another lease namespace": {"leaderElection": {"namespace": "a"}},
    "definition not kept": {"crds": {"keep": False}},
    "one namespace": {"watchNamespaces": ["a"]},
    "two namespaces": {"watchNamespaces": NAMESPACES},
    "roles not aggregated": {"rbac": {"aggregate": False}},
    "strict policy": {
        "policy": {
            "volumes": [],
            "images": ["registry.example/"],
            "serviceAccounts": [],
            "priorityClasses": ["one", "two"],
            "queues": ["one"],
            "queuePriorityClasses": ["it's quoted"],
            "schedulers": ["one"],
            "labels": ["team"],
            "runtimeClasses": ["one"],
            "tolerations": ["example.com/gpu"],
            "annotations": ["example.com/"],
            "profiles": False,
            "maxPriority": 0,
        },
    },
    "open policy": {"policy": {"volumes": True, "hostAccess": True, "annotations": True}},
    "no admission policy": {"admissionPolicy": {"enabled": False}},
    "default patches": {"defaults": {"patches": PATCHES}},
    # `helm upgrade --reuse-values` from a chart without these values
    "values of an older chart": {
        **dict.fromkeys(
            (
                *("policy", "admissionPolicy", "prices", "global", "envFrom", "extraObjects"),
                "batchService",
            )
        ),
        "metrics": dict.fromkeys(
            ("serviceMonitor", "prometheusRule", "dashboard", "maxNamespaces")
        ),
        "networkPolicy": {"rayPods": None},
    },
    "default resources": {"defaults": {"requests": {"cpu": 0.1}, "workers": {"max": 100}}},
    "another domain": {"clusterDomain": "corp.example"},
    "prices": {"prices": {"currency": "EUR", "cpuHour": "0.04", "deviceHour": "2.5"}},
    "limited jobs": {"concurrency": {"maxRunning": 50, "maxRunningPerNamespace": 10}},
    "busy API server": {"api": {"qps": 20.5, "burst": 30}, "workers": 2},
    "plain log": {"logging": {"format": "plain", "level": "WARNING"}},
    "no metrics Service": {"metrics": {"service": {"enabled": False}}},
    "scrape annotations": {
        "metrics": {"service": {"port": 9000, "annotations": {"prometheus.io/scrape": "true"}}}
    },
    "PodMonitor and alerts": {
        "metrics": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
    },
    "ServiceMonitor": {"metrics": {"serviceMonitor": {"enabled": True, "interval": "1m"}}},
    "dashboard": {"metrics": {"dashboard": {"enabled": True, "annotations": {"folder": "jobs"}}}},
    "many namespaces": {"metrics": {"maxNamespaces": 5000}},
    "network policy": {"networkPolicy": {"enabled": True}},
    "network policy with peers": {
        "networkPolicy": {"enabled": True, "metricsFrom": [PROMETHEUS], "apiServerPorts": [8443]}
    },
    "network policy of jobs": {
        "networkPolicy": {
            "metricsFrom": [PROMETHEUS],
            "rayPods": {"enabled": True, "namespaces": NAMESPACES, "kuberayFrom": [KUBERAY]},
        }
    },
    "private CA": PRIVATE_CA,
    "proxy": {"envFrom": [{"configMapRef": {"name": "proxy"}}, {"secretRef": {"name": "proxy"}}]},
    "own token key": {"tokenKey": {"existingSecret": "own"}, "extraObjects": [TOKEN_KEY]},
    "system nodes": {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
    },
    "restart on changes": {"deploymentAnnotations": {"reloader.stakater.com/auto": "true"}},
    "pods with other fields": {
        "extraPodSpec": {
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["proxy"]}],
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 5,
        },
        "revisionHistoryLimit": 0,
    },
    "Argo CD": {"crds": {"annotations": {"argocd.argoproj.io/sync-wave": "-1"}}},
    "batch service": {"batchService": BATCH_SERVICE},
    "batch service with peers": {
        "batchService": {**BATCH_SERVICE, "replicas": 1, "from": [PROMETHEUS]},
        "watchNamespaces": NAMESPACES,
        "networkPolicy": {"enabled": True},
    },
    "other user": {"podSecurityContext": {"runAsUser": 1000, "runAsGroup": 1000}},
}
