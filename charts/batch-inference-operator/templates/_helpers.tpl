{{- define "bi.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "bi.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "bi.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "bi.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "bi.selector" -}}
app.kubernetes.io/name: {{ include "bi.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "bi.labels" -}}
{{ include "bi.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels of the release, and other labels, which override common labels. */}}
{{- define "bi.labelsWith" -}}
{{- mergeOverwrite (include "bi.labels" (first .) | fromYaml) (last . | default dict) | toYaml -}}
{{- end -}}

{{- define "bi.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "bi.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is required when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The registry with a trailing slash, or nothing. */}}
{{- define "bi.registry" -}}
{{- with (.Values.global | default dict).imageRegistry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- end -}}

{{- define "bi.image" -}}
{{- include "bi.registry" . }}{{ .Values.image.repository -}}
{{- with .Values.image.digest -}}
@{{ . }}
{{- else -}}
:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Labels of the pod of `helm test`, which no Service, PodDisruptionBudget or Deployment may select. */}}
{{- define "bi.testSelector" -}}
app.kubernetes.io/name: {{ include "bi.name" . | trunc 58 | trimSuffix "-" }}-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "bi.testLabels" -}}
{{- include "bi.labelsWith" (list . (include "bi.testSelector" . | fromYaml)) -}}
{{- end -}}

{{/* Labels of the pods of the batch service, which no selector of the operator may select. */}}
{{- define "bi.batchSelector" -}}
app.kubernetes.io/name: {{ include "bi.name" . | trunc 49 | trimSuffix "-" }}-batch-service
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "bi.batchLabels" -}}
{{- include "bi.labelsWith" (list . (include "bi.batchSelector" . | fromYaml)) -}}
{{- end -}}

{{- define "bi.batchServiceAccount" -}}
{{- default (printf "%s-batch" (include "bi.fullname" .)) .Values.batchService.serviceAccountName -}}
{{- end -}}

{{/* The configuration of the batch service. As JSON, because YAML would write large numbers as floats. */}}
{{- define "bi.batchConfig" -}}
{{- $storage := dict -}}
{{- range $name, $value := .Values.batchService.storage -}}
{{- if $value }}{{ $_ := set $storage $name $value }}{{ end -}}
{{- end -}}
{{- $config := pick .Values.batchService "path" "maxFileBytes" "maxLines" "models" -}}
{{- merge (dict "storage" $storage) $config | toJson -}}
{{- end -}}

{{/* Settings of all pods of the chart. */}}
{{- define "bi.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "bi.keySecret" -}}
{{- default (printf "%s-key" (include "bi.fullname" .)) .Values.tokenKey.existingSecret -}}
{{- end -}}

{{/* Releases that watch all namespaces share a Lease if they name the same namespace for it. */}}
{{- define "bi.leaseNamespace" -}}
{{- if .Values.watchNamespaces }}{{ .Release.Namespace }}{{ else }}{{ .Values.leaderElection.namespace | default .Release.Namespace }}{{ end }}
{{- end -}}

{{- define "bi.lease" -}}
{{- if .Values.watchNamespaces }}{{ include "bi.fullname" . }}{{ else }}batch-inference-operator{{ end }}
{{- end -}}

{{/* Egress to DNS. Policies apply to the ports of pods. The port of the DNS pods of OpenShift is 5353. */}}
{{- define "bi.dns" -}}
- ports:
  {{- range list 53 5353 }}
  - {port: {{ . }}, protocol: UDP}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
{{- end -}}

{{/* The defaults of jobs. If the values set no image, heads and CPU workers get the image without CUDA. */}}
{{- define "bi.defaults" -}}
{{- $given := deepCopy (.Values.defaults | default dict) -}}
{{- $image := printf "%sbatchinference/pipeline:%s" (include "bi.registry" .) .Chart.AppVersion -}}
{{- $gpu := dict "GPU" (dict "image" (printf "%s-cuda" $image)) -}}
{{- $own := ternary (dict) (dict "image" $image "profiles" $gpu) (not (empty $given.image)) -}}
{{- toYaml (mergeOverwrite $own $given) -}}
{{- end -}}

{{/* Permissions of the operator in the namespaces of jobs: exactly the requests that it makes. */}}
{{- define "bi.rules" -}}
- apiGroups: [batchinference.dev]
  resources: [batchinferences]
  verbs: [create, delete, list, watch]
- apiGroups: [batchinference.dev]
  resources: [batchinferenceschedules]
  verbs: [get, list, watch]
- apiGroups: [batchinference.dev]
  resources: [batchinferences/status, batchinferenceschedules/status]
  verbs: [patch]
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [delete, get, patch]
- apiGroups: [""]
  resources: [configmaps, secrets]
  verbs: [create]
{{- if (.Values.policy | default dict).notifications }}
# the URLs of the notifications of a namespace
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [batchinference-notifications]
  verbs: [get]
{{- end }}
# PodDisruptionBudgets keep the heads of jobs from being evicted
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# only Events contain the reason why the containers of a pod do not start
- apiGroups: [""]
  resources: [events]
  verbs: [list]
# for the reason why a job waits in a queue of Kueue
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads, localqueues]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
